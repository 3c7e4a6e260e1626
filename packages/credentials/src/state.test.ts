import { inspect } from "node:util";
import { create } from "@bufbuild/protobuf";
import {
  ProviderEnvironmentSchema,
  ProviderValue_Classification,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { describe, expect, it } from "vitest";
import type { EndpointRequest } from "./endpoint.ts";
import { snapshotFromProto } from "./proto.ts";
import { Secret } from "./secret.ts";
import { isUsable, type ProviderSnapshot, type ProviderValue } from "./snapshot.ts";
import { CredentialState } from "./state.ts";

const SECRET = "sk-live-0123456789abcdef";

const value = (name: string, overrides: Partial<ProviderValue> = {}): ProviderValue => ({
  name,
  value: new Secret(SECRET),
  classification: "static_credential",
  endpoints: [{ host: "api.example.com", port: 443, path: "" }],
  identity: `p1:${name}`,
  expiresAt: undefined,
  provider: "acme",
  ...overrides,
});
let revision = 0;
const snapshot = (...values: ProviderValue[]): ProviderSnapshot => ({ revision: `r${revision++}`, values });
const state = (...values: ProviderValue[]): CredentialState => {
  const created = new CredentialState();
  expect(created.apply(snapshot(...values))).toMatchObject({ ok: true, changed: true });
  return created;
};
const request = (overrides: Partial<EndpointRequest> = {}): EndpointRequest => ({
  scheme: "https",
  verifiedTls: true,
  allowPlaintext: false,
  host: "api.example.com",
  port: 443,
  path: "/v1",
  now: 1000,
  ...overrides,
});
const placeholder = (of: CredentialState, name = "KEY"): string => of.current.childEnvironment().get(name) ?? "";
const header = (
  of: CredentialState,
  text: string,
  overrides: Partial<EndpointRequest> = {},
  name = "Authorization",
) => {
  const result = of.current.forEndpoint(request(overrides)).rewriteHeaders([[name, text]]);
  return result.ok ? (result.value[0]?.[1] ?? "") : result.code;
};

describe("the environment of processes", () => {
  it("holds placeholders for credentials and plain values for what is no secret", () => {
    const current = state(
      value("KEY"),
      value("REGION", { classification: "non_secret", endpoints: [], value: new Secret("eu") }),
    );
    const environment = current.current.childEnvironment();
    expect(environment.get("REGION")).toBe("eu");
    expect(environment.get("KEY")).toMatch(/^openshell:resolve:env:v\d+_KEY$/);
    expect([...environment.values()].join()).not.toContain(SECRET);
  });

  it("takes the stable handle where one is given", () => {
    const handle = "ab".repeat(32);
    const current = state(value("KEY", { handle }));
    expect(placeholder(current)).toBe(`openshell:resolve:env:s${handle}_KEY`);
    expect(header(current, placeholder(current))).toBe(SECRET);
    expect(header(current, `openshell:resolve:env:s${"cd".repeat(32)}_KEY`)).toBe("credential_unavailable");
  });

  it("leaves out names that would be ambiguous, and empty values", () => {
    const created = new CredentialState();
    const result = created.apply(snapshot(value("v1_KEY"), value("EMPTY", { value: new Secret("") }), value("OK")));
    expect(result).toMatchObject({ ok: true, skipped: ["v1_KEY"] });
    expect([...created.current.childEnvironment().keys()]).toEqual(["OK"]);
    expect(isUsable(value(`s${"0".repeat(64)}_K`))).toBe(false);
  });

  it("is what the supervisor protocol says", () => {
    const message = create(ProviderEnvironmentSchema, {
      providerRevision: "7",
      values: [
        {
          name: "KEY",
          value: SECRET,
          classification: ProviderValue_Classification.STATIC_CREDENTIAL,
          endpoints: [{ host: "api.example.com", port: 443, path: "/v1/**" }],
          credentialIdentity: "id",
          expirationTime: { seconds: 2n, nanos: 500_000_000 },
          provider: "acme",
        },
        { name: "X", value: "y" },
      ],
    });
    const converted = snapshotFromProto(message);
    expect(converted).toMatchObject({
      revision: "7",
      values: [
        { name: "KEY", classification: "static_credential", identity: "id", expiresAt: 2500, provider: "acme" },
        { name: "X", classification: "unclassified", expiresAt: undefined },
      ],
    });
    expect(converted.values[0]?.value.reveal()).toBe(SECRET);
  });
});

describe("a bad snapshot takes every credential away", () => {
  it.each<[string, ProviderValue[], string]>([
    ["an unclassified key", [value("KEY", { classification: "unclassified" })], "unclassified credential key"],
    [
      "a key that is bound and non-secret",
      [value("KEY", { classification: "non_secret" })],
      "both bound and non-secret",
    ],
    ["a duplicate", [value("KEY"), value("KEY")], "duplicate"],
    ["no identity", [value("KEY", { identity: "" })], "no identity"],
    [
      "neither endpoints nor provider",
      [value("KEY", { endpoints: [], provider: "" })],
      "neither endpoints nor a provider",
    ],
    ["port 0", [value("KEY", { endpoints: [{ host: "a.example", port: 0, path: "" }] })], "invalid port"],
    [
      "a host that covers everything",
      [value("KEY", { endpoints: [{ host: "*", port: 443, path: "" }] })],
      "invalid host",
    ],
    ["an empty host", [value("KEY", { endpoints: [{ host: "", port: 443, path: "" }] })], "invalid host"],
    ["a relative path", [value("KEY", { endpoints: [{ host: "a.example", port: 443, path: "v1" }] })], "invalid path"],
    ["a bad name", [value("A-B")], "invalid variable name"],
    ["a bad handle", [value("KEY", { handle: "xyz" })], "malformed handle"],
    ["an oversized value", [value("KEY", { value: new Secret("x".repeat(70_000)) })], "oversized"],
  ])("%s", (_, values, message) => {
    const current = state(value("KEY"));
    const held = placeholder(current);
    const result = current.apply(snapshot(...values));
    expect(result).toMatchObject({ ok: false, problem: { code: "invalid_provider_environment" } });
    if (!result.ok) {
      expect(result.problem.message).toContain(message);
      expect(result.problem.message).not.toContain("KEY");
    }
    expect(header(current, held)).toBe("credential_unavailable");
    expect(current.current.childEnvironment().size).toBe(0);
    // The next good one with the same identity revives what processes hold.
    current.apply(snapshot(value("KEY")));
    expect(header(current, held)).toBe(SECRET);
  });
});

describe("headers", () => {
  const current = state(value("KEY"));
  const held = placeholder(current);

  it.each([
    ["the whole value", held, SECRET],
    ["after a scheme", `Bearer ${held}`, `Bearer ${SECRET}`],
    ["after any scheme", `token  ${held}`, `token ${SECRET}`],
    ["an alias token", `sk-${held.replace("openshell:resolve:env:", "OPENSHELL-RESOLVE-ENV-")}`, SECRET],
    ["the password of Basic", `Basic ${btoa(`user:${held}`)}`, `Basic ${btoa(`user:${SECRET}`)}`],
    ["the user of Basic", `basic ${btoa(`${held}:`)}`, `basic ${btoa(`${SECRET}:`)}`],
    [
      "an alias as the password of Basic",
      `Basic ${btoa(`u:sk-${held.replace("openshell:resolve:env:", "OPENSHELL-RESOLVE-ENV-")}`)}`,
      `Basic ${btoa(`u:${SECRET}`)}`,
    ],
    ["a part of the password", `Basic ${btoa(`u:x-${held}-`)}`, `Basic ${btoa(`u:x-${SECRET}-`)}`],
    ["nothing to replace", "Bearer plain", "Bearer plain"],
  ])("%s", (_, text, expected) => {
    expect(header(current, text)).toBe(expected);
  });

  it.each([
    ["in the middle of a value", `a ${held} b`],
    ["with a tail", `${held}x y`],
    ["as the scheme", `${held} x`],
    ["percent-encoded", held.replaceAll(":", "%3A")],
    ["a list", `${held}, ${held}`],
  ])("a marker %s fails the request", (_, text) => {
    expect(header(current, text)).toMatch(/invalid_credential_placeholder|credential_unavailable/);
  });

  it.each(["Host", "Content-Length", "Transfer-Encoding", "Connection", "Proxy-Authorization"])(
    "never in %s",
    (name) => {
      expect(header(current, held, {}, name)).toBe("invalid_credential_placeholder");
    },
  );

  it("a value beyond Latin-1 goes out as its UTF-8 bytes, and never as a line end", () => {
    const wide = state(value("KEY", { value: new Secret("s\u010a\u010d€cret-value") }));
    const sent = header(wide, `Bearer ${placeholder(wide)}`);
    expect(sent).not.toMatch(/[\r\n]|[^\x00-\xff]/);
    expect(Buffer.from(sent, "latin1").toString("utf8")).toBe("Bearer s\u010a\u010d€cret-value");
  });

  it("never in a header's name", () => {
    const result = current.current.forEndpoint(request()).rewriteHeaders([["X-OPENSHELL-RESOLVE-ENV-KEY", "v"]]);
    expect(result.ok).toBe(false);
  });

  it.each([
    ["unknown", "openshell:resolve:env:v1_OTHER"],
    ["of another epoch", "openshell:resolve:env:v1_KEY"],
    ["without an epoch", "openshell:resolve:env:KEY"],
    ["alias without an epoch", "sk-OPENSHELL-RESOLVE-ENV-KEY"],
  ])("a placeholder %s is unavailable", (_, text) => {
    expect(header(current, text)).toBe("credential_unavailable");
    expect(header(current, `Basic ${btoa(`u:${text}`)}`)).toBe("credential_unavailable");
  });

  it("all or nothing, counted, with what was used", () => {
    const credentials = current.current.forEndpoint(request());
    const good = credentials.rewriteHeaders([
      ["A", held],
      ["B", `Bearer ${held}`],
      ["C", "c"],
    ]);
    expect(good).toMatchObject({ ok: true, replaced: 2, used: [{ key: "KEY", provider: "acme", placeholder: held }] });
    const bad = credentials.rewriteHeaders([
      ["A", held],
      ["B", "openshell:resolve:env:v1_OTHER"],
    ]);
    expect(bad).toMatchObject({ ok: false, code: "credential_unavailable", status: 500 });
    expect(JSON.stringify(bad)).not.toContain(SECRET);
  });
});

describe("where a credential may go", () => {
  const bound = state(
    value("KEY", {
      endpoints: [
        { host: "*.example.com", port: 443, path: "/v1/**" },
        { host: "api.example.org", port: 8443, path: "" },
      ],
    }),
  );
  const held = placeholder(bound);

  it.each<[Partial<EndpointRequest>, string]>([
    [{}, SECRET],
    [{ host: "API.example.com." }, SECRET],
    [{ path: "/v1" }, SECRET],
    [{ host: "api.example.org", port: 8443, path: "/x" }, SECRET],
    [{ path: "/v2" }, "credential_endpoint_mismatch"],
    [{ host: "example.com" }, "credential_endpoint_mismatch"],
    [{ host: "api.example.com.evil.org" }, "credential_endpoint_mismatch"],
    [{ port: 8443 }, "credential_endpoint_mismatch"],
    [{ host: "10.0.0.7" }, "credential_endpoint_mismatch"],
    [{ verifiedTls: false }, "credential_requires_tls"],
    [{ scheme: "http" }, "credential_requires_tls"],
    [{ scheme: "http", allowPlaintext: true }, SECRET],
    [{ host: "evil.org", allowPlaintext: true }, "credential_endpoint_mismatch"],
  ])("%o: %s", (overrides, expected) => {
    expect(header(bound, held, overrides)).toBe(expected);
  });

  it("an endpointless one goes where the policy binds its provider", () => {
    const free = state(value("KEY", { endpoints: [] }));
    expect(header(free, placeholder(free), { provider: "acme", host: "any.example" })).toBe(SECRET);
    expect(header(free, placeholder(free), { provider: "other" })).toBe("credential_endpoint_mismatch");
    expect(header(free, placeholder(free))).toBe("credential_endpoint_mismatch");
    expect(free.current.forEndpoint(request({ provider: "acme" })).credentialed).toBe(true);
    expect(free.current.forEndpoint(request()).credentialed).toBe(false);
  });

  it("one with endpoints goes nowhere else, whatever the policy binds", () => {
    expect(header(bound, held, { provider: "acme", host: "evil.org" })).toBe("credential_endpoint_mismatch");
  });
});

describe("rotation", () => {
  it("the next request uses the new value through the old placeholder, for any number of rotations", () => {
    const current = state(value("KEY"));
    const held = placeholder(current);
    for (let round = 0; round < 20; round += 1) {
      current.apply(snapshot(value("KEY", { value: new Secret(`rotated-value-${round}`) })));
      expect(placeholder(current)).toBe(held);
      expect(header(current, held)).toBe(`rotated-value-${round}`);
    }
  });

  it("a request under way keeps its generation, and can tell", () => {
    const current = state(value("KEY"));
    const generation = current.current;
    const held = placeholder(current);
    current.apply(snapshot(value("KEY", { value: new Secret("another-value") })));
    const result = generation.forEndpoint(request()).rewriteHeaders([["A", held]]);
    expect(result.ok && result.value[0]?.[1]).toBe(SECRET);
    expect(generation.revision).not.toBe(current.revision);
  });

  it.each<[string, Partial<ProviderValue>]>([
    ["another identity", { identity: "p2:KEY" }],
    ["another provider", { provider: "other" }],
    ["other endpoints", { endpoints: [{ host: "api.example.com", port: 443, path: "/v1" }] }],
  ])("%s revokes the old placeholder", (_, change) => {
    const current = state(value("KEY"));
    const held = placeholder(current);
    current.apply(snapshot(value("KEY", change)));
    expect(header(current, held)).toBe("credential_unavailable");
    expect(placeholder(current)).not.toBe(held);
  });

  it("a supervisor that starts anew gives the same placeholder", () => {
    expect(placeholder(state(value("KEY")))).toBe(placeholder(state(value("KEY", { value: new Secret("other") }))));
  });

  it("the same revision changes nothing", () => {
    const current = new CredentialState();
    const first = snapshot(value("KEY"));
    current.apply(first);
    const generation = current.current;
    expect(current.apply(first)).toEqual({ ok: true, changed: false, skipped: [] });
    expect(current.current).toBe(generation);
  });

  it("an expired value, and one that would break a header, are unavailable", () => {
    const expiring = state(value("KEY", { expiresAt: 1000 }));
    expect(header(expiring, placeholder(expiring), { now: 999 })).toBe(SECRET);
    expect(header(expiring, placeholder(expiring), { now: 1000 })).toBe("credential_unavailable");
    for (const bad of ["a\r\nb", "a\nb", "a\0b", "a\x1bb", "a\x7fb"]) {
      const broken = state(value("KEY", { value: new Secret(bad) }));
      expect(header(broken, placeholder(broken))).toBe("credential_unavailable");
    }
  });
});

describe("targets", () => {
  const rewrite = (of: CredentialState, target: string): string => {
    const result = of.current.forEndpoint(request()).rewriteTarget(target);
    return result.ok ? result.value : result.code;
  };
  const current = state(value("KEY", { value: new Secret("a b&c=é+secret") }));
  const held = placeholder(current);
  const encoded = "a%20b%26c%3D%C3%A9%2Bsecret";

  it.each([
    ["/plain?x=1", "/plain?x=1"],
    [`/bot${held}/send`, `/botSECRET/send`],
    [`/x?key=${held}&y=1`, `/x?key=SECRET&y=1`],
    [`/x?key=pre-${held.replaceAll(":", "%3A")}`, `/x?key=pre-SECRET`],
  ])("%s", (target, expected) => {
    // A placeholder directly followed by name characters would be another name.
    expect(rewrite(current, target)).toBe(expected.replace("SECRET", encoded));
  });

  it("not in a parameter's name", () => {
    expect(rewrite(current, `/x?${held}=1`)).toBe("invalid_credential_placeholder");
  });

  it.each(["a/b-secret", "..", "a\\b-secret", "a?b-secret", "a#b-secret"])(
    "no path from the value %s, a query yes",
    (text) => {
      const awkward = state(value("KEY", { value: new Secret(text) }));
      expect(rewrite(awkward, `/x/${placeholder(awkward)}`)).toBe("credential_unavailable");
      expect(rewrite(awkward, `/x?q=${placeholder(awkward)}`)).not.toContain("credential");
    },
  );
});

describe("nothing shows a value", () => {
  it("not inspection, not JSON, not text", () => {
    const current = state(value("KEY"));
    const credentials = current.current.forEndpoint(request());
    const result = credentials.rewriteHeaders([["A", "x"]]);
    const used = credentials.rewriteHeaders([["A", placeholder(current)]]);
    for (const thing of [
      current,
      current.current,
      credentials,
      result,
      used.ok && used.used,
      value("KEY"),
      `${new Secret(SECRET)}`,
    ]) {
      expect(inspect(thing, { depth: 9, showHidden: true })).not.toContain(SECRET);
      expect(JSON.stringify(thing)).not.toContain(SECRET);
    }
  });

  it("not redacted logs: live and retired values in every spelling, and placeholders", () => {
    const awkward = 'quo"te d/value';
    const current = state(value("KEY", { value: new Secret(awkward) }));
    const held = placeholder(current);
    current.apply(snapshot(value("KEY")));
    const text = `${SECRET} ${awkward} ${JSON.stringify(awkward)} ${encodeURIComponent(awkward)} ${held} end`;
    expect(current.redact(text)).toBe('[CREDENTIAL] [CREDENTIAL] "[CREDENTIAL]" [CREDENTIAL] [CREDENTIAL] end');
    expect(current.redact("nothing here")).toBe("nothing here");
  });
});

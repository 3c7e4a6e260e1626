import type { DescField } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { SandboxPhase } from "@openshell/api";
import type { RpcName } from "@openshell/api/compatibility.ts";
import { fieldPaths, requestGaps } from "@openshell/api/compatibility-fields.ts";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { Harness } from "../testing/harness.ts";
import { call, inWorkspace, isBuilt, methodOf, refusal, requestOf, rpcNames, sampleOf } from "./calls.ts";

const MAX_DURATION = 315_576_000_000n;
const BAD_TIMES = [
  { seconds: 0n, nanos: -1 },
  { seconds: 0n, nanos: 1_000_000_000 },
  { seconds: -62_135_596_801n, nanos: 0 },
  { seconds: 253_402_300_800n, nanos: 0 },
  { seconds: 9_223_372_036_854_775_807n, nanos: 0 },
];
const BAD_DURATIONS = [
  { seconds: -1n, nanos: 0 },
  { seconds: 0n, nanos: -1 },
  { seconds: 1n, nanos: -1 },
  { seconds: 0n, nanos: 1_000_000_000 },
  { seconds: MAX_DURATION + 1n, nanos: 0 },
  { seconds: 9_223_372_036_854_775_807n, nanos: 0 },
];
const KINDS: Readonly<Record<string, readonly object[]>> = {
  "google.protobuf.Timestamp": BAD_TIMES,
  "google.protobuf.Duration": BAD_DURATIONS,
};

const built = rpcNames.filter(isBuilt);
const timed = built.flatMap((rpc) => {
  const { start } = requestOf(rpc);
  return fieldPaths(requestOf(rpc).schema, (key) => key in requestGaps)
    .filter(({ fields, key }) => (fields.at(-1)!.message?.typeName ?? "") in KINDS && requestGaps[key] === undefined)
    .map(({ path, fields }) => ({ rpc, path: start ? `start.${path}` : path, fields }));
});

function at(request: object, [field, ...rest]: readonly DescField[], value: object): object {
  const name = field!.localName;
  const present = (request as Record<string, object | undefined>)[name] ?? {};
  if (rest.length > 0) return { ...request, [name]: at(present, rest, value) };
  return { ...request, [name]: field!.fieldKind === "map" ? { TOKEN: value } : value };
}

describe("values of requests", () => {
  let gateway: Harness;
  beforeAll(async () => {
    gateway = await Harness.open();
    await gateway.create({ name: "x" });
    await gateway.client.createProvider({
      ...inWorkspace("default"),
      provider: { metadata: { name: "p" }, type: "generic", credentials: { TOKEN: "t" } },
    });
  });
  afterAll(() => gateway[Symbol.asyncDispose]());

  it("hold times and durations", () => expect(timed.length).toBeGreaterThanOrEqual(6));

  it.each(timed)("$rpc refuses a $path out of bounds, naming it", async ({ rpc, path, fields }) => {
    const { message, fieldKind } = fields.at(-1)!;
    for (const value of KINDS[message!.typeName]!) {
      const request = at(sampleOf(rpc), fields, value) as Record<string, unknown>;
      const { code, fields: named, reason } = await refusal(gateway, rpc, request);
      const field = fieldKind === "map" ? `${path}[TOKEN]` : path;
      expect([value, code, named, reason]).toEqual([value, Code.InvalidArgument, [field], "INVALID_ARGUMENT"]);
    }
  });

  it("take the epoch as a time, not as none", async () => {
    const credentialExpirationTimes = { TOKEN: { seconds: 0n, nanos: 0 } };
    const provider = {
      metadata: { name: "epoch" },
      type: "generic",
      credentials: { TOKEN: "t" },
      credentialExpirationTimes,
    };
    const made = await gateway.client.createProvider({ ...inWorkspace("default"), provider });
    expect(made.provider?.credentialExpirationTimes).toMatchObject({ TOKEN: { seconds: 0n, nanos: 0 } });
    const update = (request: object) =>
      gateway.client.updateProvider({
        ...inWorkspace("default"),
        provider: { metadata: { name: "epoch" } },
        ...request,
      });
    const cleared = await update({ clearCredentialExpirationKeys: ["TOKEN"] });
    expect(cleared.provider?.credentialExpirationTimes).toEqual({});
  });

  it("of credentials are never taken from answers", async () => {
    const provider = { metadata: { name: "p" }, credentials: { TOKEN: "REDACTED" } };
    const { code, fields, message } = await refusal(
      gateway,
      "updateProvider",
      sampleOf("updateProvider", { provider }),
    );
    expect([code, fields]).toEqual([Code.InvalidArgument, ["provider.credentials[TOKEN]"]]);
    expect(message).toMatch(/leave it out to keep the stored one/);
  });

  it("of a policy are refused by their names on the wire", async () => {
    const wrong = {
      version: 1,
      filesystem: { readOnly: ["relative"] },
      networkPolicies: { a: { endpoints: [{ host: "a.example.com" }] } },
    };
    const created = await refusal(gateway, "createSandbox", sampleOf("createSandbox", { spec: { policy: wrong } }));
    expect(created.code).toBe(Code.InvalidArgument);
    for (const field of created.fields)
      expect(field).toMatch(/^spec\.policy\.(?:filesystem\.read_only|network_policies)\b/);
    const updated = await refusal(gateway, "updateConfig", sampleOf("updateConfig", { policy: wrong }));
    expect(updated.fields).toEqual(created.fields.map((field) => field.replace("spec.", "")));
  });

  it("of an expiry are given in one way", async () => {
    const times = { TOKEN: { seconds: 1n, nanos: 0 } };
    const both = { credentialExpirationTimes: times, clearCredentialExpirationKeys: ["TOKEN"] };
    const { fields } = await refusal(gateway, "updateProvider", sampleOf("updateProvider", both));
    expect(fields).toEqual(["clear_credential_expiration_keys[0]"]);
    const twice = {
      provider: { metadata: { name: "p" }, credentialExpirationTimes: times },
      credentialExpirationTimes: times,
    };
    const again = await refusal(gateway, "updateProvider", sampleOf("updateProvider", twice));
    expect(again.fields).toEqual(["provider.credential_expiration_times[TOKEN]"]);
    const unknown = await refusal(
      gateway,
      "updateProvider",
      sampleOf("updateProvider", { clearCredentialExpirationKeys: ["NONE"] }),
    );
    expect(unknown.fields).toEqual(["clear_credential_expiration_keys"]);
  });

  it.each([
    [
      "createProvider",
      { metadata: { name: "n", workspace: "elsewhere" }, type: "generic", credentials: { A: "1" } },
      "workspace",
    ],
    ["updateProvider", { metadata: { name: "p", workspace: "elsewhere" } }, "workspace"],
    ["updateProvider", { metadata: { name: "p", labels: { "bad key": "" } } }, "labels[bad key]"],
  ] as const)("%s refuses metadata that contradicts the request: %o", async (rpc, provider, field) => {
    const { code, fields } = await refusal(gateway, rpc, sampleOf(rpc, { provider }));
    expect([code, fields]).toEqual([Code.InvalidArgument, [`provider.metadata.${field}`]]);
  });

  it("may have names that JavaScript knows: they are names like others", async () => {
    const scope = inWorkspace("default");
    const config = Object.fromEntries([
      ["__proto__", "1"],
      ["constructor", "2"],
    ]);
    const credentials = { constructor_: "v" };
    const times = { constructor: { seconds: 1n, nanos: 0 } };
    const bad = { metadata: { name: "js" }, type: "generic", credentials, credentialExpirationTimes: times };
    expect((await refusal(gateway, "createProvider", sampleOf("createProvider", { provider: bad }))).fields).toEqual([
      "provider.credential_expiration_times[constructor]",
    ]);
    await gateway.client.createProvider({ ...scope, provider: { ...bad, credentialExpirationTimes: {}, config } });
    const more = Object.fromEntries([
      ["__proto__", "3"],
      ["toString", "4"],
    ]);
    await gateway.client.updateProvider({ ...scope, provider: { metadata: { name: "js" }, config: more } });
    const { provider } = await gateway.client.getProvider({ ...scope, name: "js" });
    expect(Object.entries(provider!.config).toSorted()).toEqual([
      ["__proto__", "3"],
      ["constructor", "2"],
      ["toString", "4"],
    ]);
    const cleared = sampleOf("updateProvider", { clearCredentialExpirationKeys: ["constructor"] });
    expect((await refusal(gateway, "updateProvider", cleared)).fields).toEqual(["clear_credential_expiration_keys"]);
  });

  it("of labels and annotations are merged into a provider's", async () => {
    const scope = inWorkspace("default");
    const meta = { name: "labelled", labels: { a: "1", b: "2" }, annotations: { c: "3" } };
    await gateway.client.createProvider({
      ...scope,
      provider: { metadata: meta, type: "generic", credentials: { K: "v" } },
    });
    const metadata = { name: "labelled", labels: { b: "4", d: "5" }, annotations: { e: "6" } };
    const { provider } = await gateway.client.updateProvider({ ...scope, provider: { metadata } });
    expect(provider?.metadata).toMatchObject({ labels: { a: "1", b: "4", d: "5" }, annotations: { c: "3", e: "6" } });
    const found = await gateway.client.listProviders({ ...scope, labelSelector: "d=5" });
    expect(found.providers.map((row) => row.metadata?.name)).toEqual(["labelled"]);
  });
});

describe("versions of resources", () => {
  let gateway: Harness;
  beforeAll(async () => {
    gateway = await Harness.open();
    await gateway.create({ name: "x", spec: { policy: { version: 1 } } });
    await gateway.phase(SandboxPhase.READY, "x");
    // Nothing changes a stopped sandbox but what the test does.
    await gateway.client.stopSandbox({ ...inWorkspace("default"), name: "x" });
    await gateway.phase(SandboxPhase.STOPPED, "x");
    await gateway.client.createProvider({
      ...inWorkspace("default"),
      provider: { metadata: { name: "p" }, type: "generic", credentials: { TOKEN: "t" } },
    });
  });
  afterAll(() => gateway[Symbol.asyncDispose]());

  it("are in requests that are tested here", () => {
    const conditional = built.filter((rpc) =>
      methodOf(rpc).input.fields.some(({ name }) => name === "expected_resource_version"),
    );
    expect(conditional).toEqual(["attachSandboxProvider", "detachSandboxProvider", "updateConfig"]);
  });

  const stale = async (rpc: RpcName, request: object, current: bigint) => {
    const { code, reason, metadata, message, domain } = await refusal(gateway, rpc, sampleOf(rpc, { ...request }));
    expect([Code[code], reason, domain]).toEqual(["Aborted", "RESOURCE_VERSION_CONFLICT", "openshell.nvidia.com"]);
    expect(metadata).toEqual({ recovery: "REFRESH_STATE", current_resource_version: current.toString() });
    expect(message).toMatch(/was changed by another request\. Read it again/);
  };

  it("that are not the current one are ABORTED, with the current one and what to do", async () => {
    const { resourceVersion } = (await gateway.get("x")).metadata!;
    for (const wrong of [resourceVersion + 1n, 18_446_744_073_709_551_615n])
      for (const rpc of ["updateConfig", "attachSandboxProvider", "detachSandboxProvider"] as const)
        await stale(rpc, { expectedResourceVersion: wrong }, resourceVersion);
    const provider = (version: bigint, id = "") => ({
      provider: { metadata: { name: "p", resourceVersion: version, id }, credentials: { TOKEN: "new" } },
    });
    for (const wrong of [2n, 18_446_744_073_709_551_615n]) await stale("updateProvider", provider(wrong), 1n);
    // The one that was read had this name, but is another.
    await stale("updateProvider", provider(0n, "11111111-1111-4111-8111-111111111111"), 1n);
    expect((await call(gateway, "updateProvider", sampleOf("updateProvider", provider(1n)))).error).toBeUndefined();
    await stale("updateProvider", provider(1n), 2n);
    expect((await call(gateway, "updateProvider", sampleOf("updateProvider", provider(0n)))).error).toBeUndefined();
  });
});

import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { canonicalBytes } from "./canonical.ts";
import {
  CreateSandboxRequestSchema,
  type ExecSandboxRequest,
  ExecSandboxRequestSchema,
  L7RuleTargetSchema,
} from "./generated/openshell_pb.js";
import { type Mac, macOf, webCryptoMac } from "./mac.ts";
import { parseRequestId, requestFingerprint } from "./request-id.ts";

const mac: Mac = await webCryptoMac(new Uint8Array(32).fill(7));
const exec = (init: Partial<Omit<ExecSandboxRequest, "$typeName">>) =>
  create(ExecSandboxRequestSchema, { sandbox: "a", command: ["true"], ...init });
const fingerprint = (message: ExecSandboxRequest, context: readonly string[] = ["id-1"]) =>
  requestFingerprint({ mac, method: "ExecSandbox", schema: ExecSandboxRequestSchema, message, context });

describe("parseRequestId", () => {
  it("accepts a hyphenated UUID and ignores case", () => {
    const id = "7B0C9A3E-1F8D-4C55-9C3B-8E1D2A4F6071";
    expect(parseRequestId(id)).toBe(id.toLowerCase());
    expect(parseRequestId("")).toBeUndefined();
  });

  it.each([
    "00000000-0000-0000-0000-000000000000",
    "7b0c9a3e1f8d4c559c3b8e1d2a4f6071",
    "{7b0c9a3e-1f8d-4c55-9c3b-8e1d2a4f6071}",
    "7b0c9a3e-1f8d-4c55-9c3b-8e1d2a4f607g",
    " 7b0c9a3e-1f8d-4c55-9c3b-8e1d2a4f6071",
    "7b0c9a3e-1f8d-4c55-9c3b-8e1d2a4f6071\n",
  ])("refuses %j", (text) => {
    expect(() => parseRequestId(text)).toThrow("request_id");
  });
});

describe("requestFingerprint", () => {
  it("does not depend on the id itself or on map order", async () => {
    const one = await fingerprint(exec({ requestId: "a", environment: { B: "2", A: "1" } }));
    const two = await fingerprint(exec({ requestId: "b", environment: { A: "1", B: "2" } }));
    expect(one).toBe(two);
    expect(one).toMatch(/^[0-9a-f]{64}$/);
  });

  it("depends on values, presence, context, method and key", async () => {
    const base = exec({});
    const variants = await Promise.all([
      fingerprint(base),
      fingerprint(exec({ command: ["true", ""] })),
      fingerprint(exec({ executionTimeout: { $typeName: "google.protobuf.Duration", seconds: 0n, nanos: 0 } })),
      fingerprint(base, ["id-2"]),
      fingerprint(base, []),
      fingerprint(base, ["id", "-1"]),
      requestFingerprint({
        mac,
        method: "ExecSandboxInteractive",
        schema: ExecSandboxRequestSchema,
        message: base,
        context: ["id-1"],
      }),
      requestFingerprint({
        mac: await webCryptoMac(new Uint8Array(32).fill(8)),
        method: "ExecSandbox",
        schema: ExecSandboxRequestSchema,
        message: base,
        context: ["id-1"],
      }),
    ]);
    expect(new Set(variants).size).toBe(variants.length);
  });
});

describe("canonicalBytes", () => {
  it("sorts maps at every depth, Structs and maps of messages included", () => {
    const request = (flip: boolean) => {
      const order = <T>(entries: [string, T][]) => Object.fromEntries(flip ? entries.toReversed() : entries);
      return create(CreateSandboxRequestSchema, {
        labels: order([
          ["x", "1"],
          ["y", "2"],
        ]),
        spec: {
          template: {
            driverConfig: order([
              [
                "local",
                order([["volumes", [order([["a", 1] as [string, number], ["b", 2]])]] as [string, never[]], ["c", []]]),
              ],
              ["other", {}],
            ]) as Record<string, never>,
          },
          policy: {
            networkPolicies: order([
              [
                "p",
                {
                  name: "p",
                  endpoints: [
                    {
                      host: "h",
                      rules: [
                        {
                          allow: {
                            query: order([
                              ["q", { glob: "*" }],
                              ["r", { glob: "r" }],
                            ]),
                          },
                        },
                      ],
                    },
                  ],
                },
              ],
              ["o", { name: "o" }],
            ]),
          },
        },
      });
    };
    const [one, two] = [request(false), request(true)];
    expect(toBinary(CreateSandboxRequestSchema, one)).not.toEqual(toBinary(CreateSandboxRequestSchema, two));
    expect(canonicalBytes(CreateSandboxRequestSchema, one)).toEqual(canonicalBytes(CreateSandboxRequestSchema, two));
    expect(fromBinary(CreateSandboxRequestSchema, canonicalBytes(CreateSandboxRequestSchema, two))).toEqual(one);
  });

  it("leaves its argument as it was", () => {
    const message = exec({ requestId: "a", environment: { B: "2", A: "1" } });
    canonicalBytes(ExecSandboxRequestSchema, message, ["request_id"]);
    expect(message.requestId).toBe("a");
    expect(Object.keys(message.environment)).toEqual(["B", "A"]);
  });

  it("tells an absent optional field from an empty one", () => {
    const absent = canonicalBytes(L7RuleTargetSchema, create(L7RuleTargetSchema, {}));
    const empty = canonicalBytes(L7RuleTargetSchema, create(L7RuleTargetSchema, { path: "" }));
    expect(absent).not.toEqual(empty);
  });

  it("counts fields that this build does not know", () => {
    const known = toBinary(ExecSandboxRequestSchema, exec({}));
    const unknown = fromBinary(ExecSandboxRequestSchema, new Uint8Array([...known, 0xf8, 0x3f, 1]));
    expect(canonicalBytes(ExecSandboxRequestSchema, unknown)).not.toEqual(
      canonicalBytes(ExecSandboxRequestSchema, exec({})),
    );
  });
});

describe("macOf", () => {
  it("separates parts and domains", async () => {
    const tags = await Promise.all([
      macOf(mac, "d", ["ab", "c"]),
      macOf(mac, "d", ["a", "bc"]),
      macOf(mac, "da", ["b", "c"]),
    ]);
    expect(new Set(tags.map((tag) => Buffer.from(tag).toString("hex"))).size).toBe(3);
  });

  it("refuses weak keys and short tags", async () => {
    await expect(webCryptoMac(new Uint8Array(16))).rejects.toThrow("32 bytes");
    await expect(macOf(() => new Uint8Array(8), "d", [])).rejects.toThrow("32 bytes");
  });
});

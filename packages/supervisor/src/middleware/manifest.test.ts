import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { type BindingSchema, ManifestSchema, Operation, Phase } from "@openshell/api/generated/middleware_pb.js";
import { describe, expect, it } from "vitest";
import { checkManifest } from "./manifest.ts";
import { serviceOf } from "./service.ts";
import { registered } from "./testing/services.ts";

const service = serviceOf(registered("guard"))!;
type BindingInit = MessageInitShape<typeof BindingSchema>;
const http = {
  operation: Operation.HTTP_REQUEST,
  phase: Phase.PRE_CREDENTIALS,
  maxPayloadBytes: 65_536n,
} satisfies BindingInit;
const check = (bindings: BindingInit[], expectedAudience = "", name = "") =>
  checkManifest(create(ManifestSchema, { name, expectedAudience, bindings }), service);

describe("manifest of a service", () => {
  it("gives bindings under the operator's limits; a service may only shorten the time", () => {
    const socket = { ...http, operation: Operation.WEBSOCKET_MESSAGE };
    expect(
      check(
        [
          { ...http, timeout: durationFromMs(100) },
          { ...socket, timeout: durationFromMs(20_000) },
        ],
        service.audience,
      ),
    ).toEqual([
      { operation: "http_request", maxPayloadBytes: 1_024, timeoutMs: 100 },
      { operation: "websocket_message", maxPayloadBytes: 1_024, timeoutMs: 500 },
    ]);
    expect(check([http])).toMatchObject([{ timeoutMs: 500 }]);
  });

  it.each([
    ["no binding", [], "lists no binding"],
    ["a pair twice", [http, http], "lists http_request twice"],
    ["an unknown operation", [{ ...http, operation: 9 as Operation }], "operation 9"],
    ["an operation left out", [{ ...http, operation: Operation.UNSPECIFIED }], "operation 0"],
    ["the reserved phase", [{ ...http, phase: Phase.PRE_RETURN }], "phase 2 of http_request is not supported"],
    ["no payload", [{ ...http, maxPayloadBytes: 0n }], "max_payload_bytes"],
    ["a payload above 4 MiB", [{ ...http, maxPayloadBytes: 4_194_305n }], "max_payload_bytes"],
    ["less than is registered", [{ ...http, maxPayloadBytes: 1_023n }], "fewer than the 1024 that are registered"],
    ["a timeout below 10 ms", [{ ...http, timeout: durationFromMs(9) }], "not within 10 ms to 30 s"],
    ["a timeout above 30 s", [{ ...http, timeout: durationFromMs(30_001) }], "not within 10 ms to 30 s"],
    ["too many", Array.from({ length: 17 }, () => http), "more than 16 bindings"],
  ] satisfies [string, BindingInit[], string][])("is refused with %s", (_, bindings, problem) => {
    expect(check(bindings)).toContain(problem);
  });

  it("is refused for another audience, and when it is talkative; it is not repeated", () => {
    expect(check([http], "urn:another")).toBe(`it expects another audience than '${service.audience}'`);
    expect(check([http], "", "x".repeat(257))).toContain("more than 256 characters");
  });
});

describe("registration as it was delivered", () => {
  it("is used over http and https, and the same is recognised", () => {
    expect(service.endpoint).toEqual({ host: "127.0.0.1", port: 1, secure: false });
    const secure = { ...registered("guard"), endpoint: "https://[2001:db8::1]", allowInsecureTransport: false };
    expect(serviceOf(secure)?.endpoint).toEqual({ host: "2001:db8::1", port: 443, secure: true });
    expect(serviceOf(registered("guard"))?.key).toBe(service.key);
    expect(serviceOf({ ...registered("guard"), caPem: "other" })?.key).not.toBe(service.key);
  });

  it.each([
    ["plain http that nobody permitted", { allowInsecureTransport: false }],
    ["another scheme", { endpoint: "ftp://a:1" }],
    ["a password", { endpoint: "http://u:p@a:1" }],
    ["no payload", { maxPayloadBytes: 0 }],
    ["a payload above 4 MiB", { maxPayloadBytes: 4_194_305 }],
    ["too short a time", { timeout: durationFromMs(9) }],
    ["no name", { name: "" }],
  ])("is refused with %s", (_, change) => {
    expect(serviceOf({ ...registered("guard"), ...change })).toBeUndefined();
  });
});

import { create, fromBinary, toJsonString } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import {
  CreateProviderRequestSchema,
  ProviderEnvironmentSnapshotSchema,
  SupervisorHelloSchema,
  TcpForwardFrameSchema,
} from "./generated/openshell_pb.js";
import { REDACTED, redactSecrets } from "./redact.ts";

describe("redactSecrets", () => {
  it("hides values of a secret map in a nested message and keeps its keys and everything else", () => {
    const request = create(CreateProviderRequestSchema, {
      provider: { type: "openai", credentials: { OPENAI_API_KEY: "sk-live-1" }, config: { region: "eu" } },
    });
    const redacted = redactSecrets(CreateProviderRequestSchema, request);
    expect(redacted.provider).toMatchObject({
      type: "openai",
      credentials: { OPENAI_API_KEY: REDACTED },
      config: { region: "eu" },
    });
    expect(request.provider!.credentials["OPENAI_API_KEY"]).toBe("sk-live-1");
  });

  it("hides secrets in lists and oneofs", () => {
    const snapshot = create(ProviderEnvironmentSnapshotSchema, { values: [{ name: "K", value: "sk-live-2" }] });
    expect(
      toJsonString(ProviderEnvironmentSnapshotSchema, redactSecrets(ProviderEnvironmentSnapshotSchema, snapshot)),
    ).not.toContain("sk-live");
    const frame = create(TcpForwardFrameSchema, {
      payload: { case: "init", value: { sandbox: "a", authorizationToken: "tok-live" } },
    });
    const json = toJsonString(TcpForwardFrameSchema, redactSecrets(TcpForwardFrameSchema, frame));
    expect(json).not.toContain("tok-live");
    expect(json).toContain('"sandbox":"a"');
  });

  it("drops fields that this build does not know", () => {
    const hello = fromBinary(SupervisorHelloSchema, new Uint8Array([0xfa, 0x3f, 1, 0x41]));
    expect(hello.$unknown).toHaveLength(1);
    expect(redactSecrets(SupervisorHelloSchema, hello).$unknown ?? []).toHaveLength(0);
  });
});

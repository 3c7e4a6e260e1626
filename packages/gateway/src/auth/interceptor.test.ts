import { create, type DescMethod } from "@bufbuild/protobuf";
import {
  Code,
  createContextValues,
  type StreamResponse,
  type UnaryRequest,
  type UnaryResponse,
} from "@connectrpc/connect";
import { HealthRequestSchema, OpenShell } from "@openshell/api";
import { SupervisorGateway } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { describe, expect, it } from "vitest";
import type { Peer } from "../http/peer.ts";
import { PUBLIC_SERVICES } from "../http/standard-services.ts";
import { ALL_SCOPES, type Caller, OPERATOR_ROLE, USER_ROLE } from "./caller.ts";
import { peerKey } from "./context.ts";
import { hostPeer, userSocketPeer } from "./identify.ts";
import { authInterceptor, authModeOf, checkAuthModes } from "./interceptor.ts";

const caller = (roles: readonly string[]): Peer => ({
  listener: "tcp",
  caller: {
    subject: "c",
    displayName: "c",
    identityProvider: "mtls",
    roles,
    scopes: [ALL_SCOPES],
    admin: roles.includes(USER_ROLE),
    ownerOfMachineFiles: false,
  } satisfies Caller,
  refusal: undefined,
});

/** The code with which a call ends, or "passed". */
async function outcome(method: DescMethod, peer: Peer | undefined): Promise<string> {
  const contextValues = createContextValues().set(peerKey, peer);
  const request = { method, contextValues, message: create(HealthRequestSchema), stream: false };
  try {
    await authInterceptor(async () => ({ stream: false }) as unknown as UnaryResponse & StreamResponse)(
      request as unknown as UnaryRequest,
    );
    return "passed";
  } catch (error) {
    return Code[(error as { code: Code }).code];
  }
}

describe("the authentication interceptor", () => {
  it("finds a valid auth_mode on every method", () => {
    for (const method of OpenShell.methods) expect(authModeOf(method)).not.toBe("");
  });

  it("lets anybody ask for health and schemas, and no other service without declared authentication", async () => {
    checkAuthModes(PUBLIC_SERVICES);
    const standard = PUBLIC_SERVICES.filter((service) => service !== OpenShell);
    expect(standard.map(({ typeName }) => typeName)).toEqual([
      "grpc.health.v1.Health",
      "grpc.reflection.v1.ServerReflection",
      "grpc.reflection.v1alpha.ServerReflection",
    ]);
    for (const method of standard.flatMap(({ methods }) => methods)) {
      for (const peer of [
        undefined,
        userSocketPeer(1000, { uid: 1001, pid: 1 }),
        caller([]),
        caller([OPERATOR_ROLE]),
      ]) {
        expect([method.name, await outcome(method, peer)]).toEqual([method.name, "passed"]);
      }
    }
    // A service that happens to be called alike, or declares nothing, stops the start.
    expect(() => checkAuthModes([SupervisorGateway])).toThrow(/declares no valid auth_mode/);
  });

  it("lets only unauthenticated methods through without a caller", async () => {
    for (const method of OpenShell.methods) {
      const expected = authModeOf(method) === "unauthenticated" ? "passed" : "Unauthenticated";
      for (const peer of [undefined, hostPeer, userSocketPeer(1000, { uid: 1001, pid: 1 })]) {
        expect([method.name, await outcome(method, peer)]).toEqual([method.name, expected]);
      }
    }
  });

  it("lets a user's certificate and the own uid call everything but operators' methods", async () => {
    for (const method of OpenShell.methods) {
      const expected = authModeOf(method) === "operator" ? "PermissionDenied" : "passed";
      for (const peer of [caller([USER_ROLE]), userSocketPeer(1000, { uid: 1000, pid: 1 })]) {
        expect([method.name, await outcome(method, peer)]).toEqual([method.name, expected]);
      }
    }
  });

  it("lets an operator's certificate call operators' methods and nothing else", async () => {
    for (const method of OpenShell.methods) {
      const mode = authModeOf(method);
      const expected = mode === "operator" || mode === "unauthenticated" ? "passed" : "PermissionDenied";
      expect([method.name, await outcome(method, caller([OPERATOR_ROLE]))]).toEqual([method.name, expected]);
    }
  });

  it("gives a certificate without a known role nothing", async () => {
    expect(await outcome(OpenShell.method.listSandboxes, caller([]))).toBe("PermissionDenied");
  });
});

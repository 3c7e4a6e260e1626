import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { ConfigurationAdmissionState, PolicyStatus, SandboxPhase } from "@openshell/api";
import {
  type AttachSandbox,
  type ConfigUpdate,
  type HostDownlink,
  HostUplinkSchema,
  type RelayUplinkSchema,
  type SessionAccepted,
  type SupervisorDownlink,
  type SupervisorUplinkSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { BoundedQueue } from "@openshell/base/queue.ts";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Harness } from "../api/testing/harness.ts";
import { WAIT_HEADER } from "../delivery/wait-limit.ts";
import { HOST_SECRET_HEADER, SANDBOX_TOKEN_HEADER } from "./service.ts";

type Up = MessageInitShape<typeof SupervisorUplinkSchema>["message"];

/** A peer that does only what a test tells it to. */
class Peer {
  readonly up = new BoundedQueue<MessageInitShape<typeof SupervisorUplinkSchema>>(100);
  readonly down: AsyncIterator<SupervisorDownlink>;

  constructor(gateway: Harness, token: string) {
    const headers = { [SANDBOX_TOKEN_HEADER]: token };
    this.down = gateway.host!.client.connectSupervisor(this.up, { headers })[Symbol.asyncIterator]();
  }
  send(message: Up): void {
    this.up.offer({ message: message! });
  }
  /** The next message, or how the stream ended. */
  async next(): Promise<SupervisorDownlink["message"] | { case: "end" } | { case: "error"; code: Code }> {
    try {
      const { done, value } = await this.down.next();
      return done ? { case: "end" } : value.message;
    } catch (error) {
      return { case: "error", code: ConnectError.from(error).code };
    }
  }
}

/** A bootstrap result whose halves both say this. */
const result = (outcome: number, appliedRevision: string) => (sessionId: string) => ({
  sessionId,
  sandboxConfig: { outcome, appliedRevision },
  providerEnvironment: { outcome, appliedRevision },
});

describe("the supervisor protocol", () => {
  let gateway: Harness;
  let attach: AttachSandbox;
  beforeEach(async () => {
    gateway = await Harness.open();
    const attached = Promise.withResolvers<AttachSandbox>();
    gateway.configureHost = (host) => {
      host.onAttach = (message) => {
        attached.resolve(message);
        return false;
      };
    };
    await gateway.create({ spec: { policy: { version: 1 } } });
    attach = await attached.promise;
  });
  afterEach(() => gateway[Symbol.asyncDispose]());

  const hello = (changes: object = {}): Up => ({
    case: "hello",
    value: {
      protocolRevision: 2,
      sandboxId: attach.sandboxId,
      generation: attach.generation,
      epoch: attach.token!.epoch,
      instanceId: "i1",
      connectionEpoch: 1n,
      firstStart: true,
      imagePolicy: { case: "missing", value: {} },
      ...changes,
    },
  });
  const connect = (token = attach.token!.token) => new Peer(gateway, token);
  async function prepared(): Promise<{
    peer: Peer;
    candidate: Extract<SupervisorDownlink["message"], { case: "candidate" }>["value"];
  }> {
    const peer = connect();
    peer.send(hello());
    const message = await peer.next();
    if (message.case !== "candidate") throw new Error(`got ${message.case}`);
    return { peer, candidate: message.value };
  }
  /** A peer that was accepted and has not answered yet. */
  async function acceptedPeer(): Promise<{ peer: Peer; accepted: SessionAccepted }> {
    const { peer, candidate } = await prepared();
    const { candidateId, policyHash } = candidate;
    peer.send({ case: "prepared", value: { candidateId, policyHash, result: { case: "unchanged", value: {} } } });
    const message = await peer.next();
    if (message.case !== "accepted") throw new Error(`got ${message.case}`);
    return { peer, accepted: message.value };
  }
  const applied = ({ sessionId, sandboxConfig, providerEnvironment }: SessionAccepted): Up => ({
    case: "bootstrapResult",
    value: {
      sessionId,
      sandboxConfig: { outcome: 1, appliedRevision: sandboxConfig!.configRevision },
      providerEnvironment: { outcome: 1, appliedRevision: providerEnvironment!.providerRevision },
    },
  });
  const admission = async () => (await gateway.get()).status?.configurationAdmission;
  const setPolicy = (host: string) => {
    const rule = { endpoints: [{ host, port: 443 }], binaries: [{ path: "/x" }] };
    const policy = { version: 1, networkPolicies: { a: rule } };
    const request = { workspaceScope: gateway.scope, sandbox: "box", policy };
    return gateway.client.updateConfig(request, { headers: { [WAIT_HEADER]: "0" } });
  };
  const rejection = async (peer: Peer) => {
    const message = await peer.next();
    return message.case === "rejected" ? message.value.failure?.code : message;
  };

  it("gives a host everything it needs, once it proved itself", () => {
    expect(attach).toMatchObject({
      sandboxName: "box",
      workspace: "default",
      generation: 1n,
      inspectionCa: { certificatePem: "CERT", privateKeyPem: "CA KEY" },
      network: { alwaysDenied: ["127.0.0.1:17670"] },
    });
    expect(attach.local?.nonce).toHaveLength(32);
  });

  it.each(["", "00", "ab".repeat(32)])("refuses the host secret %j", async (secret) => {
    const stream = gateway.host!.client.connectHost((async function* () {})(), {
      headers: { [HOST_SECRET_HEADER]: secret },
    });
    await expect(stream[Symbol.asyncIterator]().next()).rejects.toMatchObject({ code: Code.Unauthenticated });
  });

  it("refuses an unknown token, and a relay hello for another sandbox", async () => {
    const peer = connect("made up");
    peer.send(hello());
    expect(await peer.next()).toEqual({ case: "error", code: Code.Unauthenticated });
    const up = (async function* (): AsyncGenerator<MessageInitShape<typeof RelayUplinkSchema>> {
      yield { message: { case: "hello", value: { relayId: "r", sandboxId: "another" } } };
    })();
    const relay = gateway.host!.client.relay(up, { headers: { [SANDBOX_TOKEN_HEADER]: attach.token!.token } });
    await expect(relay[Symbol.asyncIterator]().next()).rejects.toMatchObject({ code: Code.Unauthenticated });
  });

  it.each([
    ["another sandbox", { sandboxId: "x" }, "token_mismatch"],
    ["another generation", { generation: 2n }, "token_mismatch"],
    ["another epoch", { epoch: 1n }, "token_mismatch"],
    ["no instance", { instanceId: "" }, "invalid_message"],
  ])("rejects a hello with %s", async (_what, changes, code) => {
    const peer = connect();
    peer.send(hello(changes));
    expect(await rejection(peer)).toBe(code);
  });

  it("refuses a newer protocol with a status that names both revisions", async () => {
    const peer = connect();
    peer.send(hello({ protocolRevision: 3 }));
    await expect(peer.down.next()).rejects.toMatchObject({
      code: Code.FailedPrecondition,
      rawMessage: expect.stringMatching(/revisions 0 to 2 .*not 3/),
    });
  });

  it("rejects a stream that begins with something else", async () => {
    const peer = connect();
    peer.send({ case: "ready", value: {} });
    expect(await rejection(peer)).toBe("unexpected_message");
  });

  it("rejects an answer to another candidate, and the start ends", async () => {
    const { peer, candidate } = await prepared();
    peer.send({
      case: "prepared",
      value: { candidateId: "x", policyHash: candidate.policyHash, result: { case: "unchanged", value: {} } },
    });
    expect(await rejection(peer)).toBe("candidate_mismatch");
    expect((await gateway.phase(SandboxPhase.ERROR)).status?.configurationActivated).toBeFalsy();
  });

  it.each([
    ["of another session", (id: string) => ({ sessionId: `${id}x` }), "invalid_message"],
    ["without its components", (id: string) => ({ sessionId: id }), "invalid_message"],
    ["at another revision", result(1, "other"), "revision_mismatch"],
    ["applied without a revision", result(1, ""), "revision_mismatch"],
    ["refused at a revision", result(7, "other"), "revision_mismatch"],
  ])("stores nothing of a bootstrap %s", async (_what, wrong, code) => {
    const { peer, accepted } = await acceptedPeer();
    peer.send({ case: "bootstrapResult", value: wrong(accepted.sessionId) });
    expect(await rejection(peer)).toBe(code);
    const { status } = await gateway.phase(SandboxPhase.ERROR);
    expect(status?.configurationActivated).toBeFalsy();
    expect(status?.configurationAdmission).toBeUndefined();
  });

  it("answers an applied bootstrap once its admission is durable, and sends no change before", async () => {
    const { peer, accepted } = await acceptedPeer();
    await setPolicy("before.example.com");
    expect((await admission())?.state).toBeUndefined();
    peer.send(applied(accepted));
    expect(await peer.next()).toMatchObject({
      case: "admitted",
      value: { configRevision: accepted.sandboxConfig!.configRevision },
    });
    expect(await admission()).toMatchObject({ state: ConfigurationAdmissionState.ACCEPTED, policyVersion: 1 });
    // What was published between the bootstrap's read and now comes right after.
    const { component } = ((await peer.next()) as { value: ConfigUpdate }).value;
    expect(component).toMatchObject({ case: "sandboxConfig", value: { policyVersion: 2 } });
  });

  it("counts nothing as acknowledged whose admission could not be stored: the next session begins anew", async () => {
    const { peer, accepted } = await acceptedPeer();
    gateway.failWrites = true;
    peer.send(applied(accepted));
    expect((await peer.next()).case).toBe("error");
    gateway.failWrites = false;
    expect(await admission()).toBeUndefined();
    const again = connect();
    again.send(hello({ connectionEpoch: 2n }));
    expect((await again.next()).case).toBe("candidate");
  });

  it("skips the preparation on a reconnect, and a change made meanwhile is in its bootstrap", async () => {
    const first = await acceptedPeer();
    first.peer.send(applied(first.accepted));
    expect((await first.peer.next()).case).toBe("admitted");
    first.peer.send({ case: "ready", value: { workloadIdentity: "1000:1000" } });
    await gateway.phase(SandboxPhase.READY);
    first.peer.up.close();
    await setPolicy("meanwhile.example.com");
    const again = connect();
    again.send(hello({ connectionEpoch: 2n, firstStart: false, imagePolicy: undefined }));
    const message = await again.next();
    expect(message).toMatchObject({ case: "accepted", value: { sandboxConfig: { policyVersion: 2 } } });
    if (message.case === "accepted") expect(message.value.mainProcess).toBeUndefined();
  });

  it("lets a running sandbox go on that refuses a configuration on a reconnect, and repairs it live", async () => {
    const first = await acceptedPeer();
    first.peer.send(applied(first.accepted));
    expect((await first.peer.next()).case).toBe("admitted");
    first.peer.send({ case: "ready", value: { workloadIdentity: "1000:1000" } });
    await gateway.phase(SandboxPhase.READY);
    first.peer.up.close();
    await setPolicy("bad.example.com");
    const again = connect();
    again.send(hello({ connectionEpoch: 2n, firstStart: false, imagePolicy: undefined }));
    const message = await again.next();
    if (message.case !== "accepted") throw new Error(`got ${message.case}`);
    again.send({ case: "bootstrapResult", value: result(7, "")(message.value.sessionId) });
    expect((await again.next()).case).toBe("admitted");
    again.send({ case: "ready", value: { workloadIdentity: "1000:1000" } });
    const policy = async () => {
      const scope = { workspaceScope: gateway.scope, sandbox: "box" };
      return (await gateway.client.getSandboxPolicyStatus({ ...scope, version: 2 })).revision?.status;
    };
    await gateway.until(async () => (await policy()) === PolicyStatus.FAILED, "the refusal");
    expect((await gateway.get()).status).toMatchObject({ phase: SandboxPhase.READY, currentPolicyVersion: 1 });
    await setPolicy("good.example.com");
    const { component } = ((await again.next()) as { value: ConfigUpdate }).value;
    expect(component).toMatchObject({ case: "sandboxConfig", value: { policyVersion: 3 } });
  });

  it.each(["readiness", "prepared"] as const)(
    "breaks a stream on which %s comes out of turn: the start begins anew",
    async (name) => {
      const { peer, accepted } = await acceptedPeer();
      const early = { case: name, value: { sessionId: accepted.sessionId } } as Up;
      peer.send(early);
      expect(await peer.next()).toEqual({ case: "error", code: Code.Unavailable });
      expect((await gateway.get()).status?.phase).toBe(SandboxPhase.PROVISIONING);
      const second = connect();
      second.send(hello({ connectionEpoch: 2n }));
      expect((await second.next()).case).toBe("candidate");
    },
  );

  it("takes a prepared policy as a proposal: a bad one is refused, nothing starts", async () => {
    const { peer, candidate } = await prepared();
    const { candidateId, policyHash } = candidate;
    const policy = { version: 1, filesystem: { readWrite: ["/"] } };
    peer.send({ case: "prepared", value: { candidateId, policyHash, result: { case: "policy", value: policy } } });
    expect(await rejection(peer)).toBe("policy_refused");
    expect((await gateway.store.policies.latest(attach.sandboxId))?.version).toBe(1);
  });

  it("takes the policy that its owner gave once more, although the start added paths to it (#2165, #1528)", async () => {
    const { peer, candidate } = await prepared();
    const { candidateId, policyHash } = candidate;
    const policy = { version: 1, filesystem: { includeWorkdir: true, readOnly: ["/opt/tool"] } };
    peer.send({ case: "prepared", value: { candidateId, policyHash, result: { case: "policy", value: policy } } });
    expect((await peer.next()).case).toBe("accepted");
    expect((await gateway.store.policies.latest(attach.sandboxId))?.policy.filesystem?.readOnly).toEqual(["/opt/tool"]);
    const again = { workspaceScope: gateway.scope, sandbox: "box", policy: { version: 1 } };
    const { version } = await gateway.client.updateConfig(again, { headers: { [WAIT_HEADER]: "0" } });
    expect(version).toBe(3);
  });

  it("ends a start whose policy cannot be prepared, and says why", async () => {
    const { peer, candidate } = await prepared();
    const { candidateId, policyHash } = candidate;
    peer.send({
      case: "prepared",
      value: { candidateId, policyHash, result: { case: "failure", value: { code: "bad", message: "no such path" } } },
    });
    expect(await rejection(peer)).toBe("configuration_rejected");
    const { status } = await gateway.phase(SandboxPhase.ERROR);
    expect(status?.conditions.find(({ type }) => type === "Ready")?.message).toMatch(/no such path/);
  });

  it("lets a preparation be repeated that failed for a passing reason", async () => {
    const { peer, candidate } = await prepared();
    const { candidateId, policyHash } = candidate;
    const value = { code: "bad", message: "busy", retryable: true };
    peer.send({ case: "prepared", value: { candidateId, policyHash, result: { case: "failure", value } } });
    expect(await peer.next()).toEqual({ case: "error", code: Code.Unavailable });
    expect((await gateway.get()).status?.phase).toBe(SandboxPhase.PROVISIONING);
  });

  it("lets a newer session take over, and the end of the older one change nothing", async () => {
    const first = await prepared();
    const second = connect();
    second.send(hello({ connectionEpoch: 2n }));
    expect((await second.next()).case).toBe("candidate");
    expect(await first.peer.next()).toEqual({ case: "error", code: Code.Unavailable });
    const late = connect();
    late.send(hello({ connectionEpoch: 1n }));
    expect(await rejection(late)).toBe("stale_connection");
  });

  it("ends a session whose sandbox is deleted, and rejects it when it comes back", async () => {
    const { peer } = await prepared();
    await gateway.client.deleteSandbox({ workspaceScope: gateway.scope, name: "box" });
    expect(await peer.next()).toEqual({ case: "end" });
    const again = connect();
    again.send(hello({ connectionEpoch: 2n }));
    expect(await again.next()).toEqual({ case: "error", code: Code.Unauthenticated });
  });

  it("tells a host to let go of what it should not hold", async () => {
    const up = new BoundedQueue<MessageInitShape<typeof HostUplinkSchema>>(10);
    const held = [{ sandboxId: "gone", generation: 1n, mainProcessRunning: true }];
    const value = { protocolRevision: 2, hostId: gateway.host!.hostId, instanceId: "h2", pid: 1, held };
    up.offer(create(HostUplinkSchema, { message: { case: "hello", value } }));
    const headers = { [HOST_SECRET_HEADER]: gateway.hostSecret };
    const seen: HostDownlink["message"][] = [];
    for await (const { message } of gateway.host!.client.connectHost(up, { headers })) {
      seen.push(message);
      if (message.case === "detach") break;
    }
    expect(seen.map(({ case: kind }) => kind)).toEqual(["accepted", "attach", "detach"]);
    expect(seen.at(-1)?.value).toMatchObject({ sandboxId: "gone", generation: 1n });
  });
});

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { SandboxPhase } from "@openshell/api";
import {
  type AttachSandbox,
  type HostDownlink,
  HostUplinkSchema,
  type RelayUplinkSchema,
  type SupervisorDownlink,
  type SupervisorUplinkSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { BoundedQueue } from "@openshell/base/queue.ts";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Harness } from "../api/testing/harness.ts";
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
    ["a newer protocol", { protocolRevision: 3 }, "protocol_revision"],
    ["a polling protocol", { protocolRevision: 1 }, "protocol_revision"],
    ["no instance", { instanceId: "" }, "invalid_message"],
  ])("rejects a hello with %s", async (_what, changes, code) => {
    const peer = connect();
    peer.send(hello(changes));
    expect(await rejection(peer)).toBe(code);
  });

  it("rejects a stream that begins with something else", async () => {
    const peer = connect();
    peer.send({ case: "ready", value: {} });
    expect(await rejection(peer)).toBe("unexpected_message");
  });

  it("rejects an answer to another candidate, and a bootstrap of another session or revision", async () => {
    const { peer, candidate } = await prepared();
    peer.send({
      case: "prepared",
      value: { candidateId: "x", policyHash: candidate.policyHash, result: { case: "unchanged", value: {} } },
    });
    expect(await rejection(peer)).toBe("candidate_mismatch");

    for (const wrong of [
      (id: string) => ({ sessionId: `${id}x` }),
      (id: string) => ({ sessionId: id }),
      (id: string) => ({
        sessionId: id,
        sandboxConfig: { outcome: 1, appliedRevision: "other" },
        providerEnvironment: { outcome: 1, appliedRevision: "other" },
      }),
    ]) {
      const again = await prepared();
      const { candidateId, policyHash } = again.candidate;
      again.peer.send({
        case: "prepared",
        value: { candidateId, policyHash, result: { case: "unchanged", value: {} } },
      });
      const accepted = await again.peer.next();
      if (accepted.case !== "accepted") throw new Error(`got ${accepted.case}`);
      again.peer.send({ case: "bootstrapResult", value: wrong(accepted.value.sessionId) });
      expect(await rejection(again.peer)).toMatch(/invalid_message|revision_mismatch/);
    }
    expect((await gateway.get()).status?.phase).toBe(SandboxPhase.PROVISIONING);
  });

  it("takes a prepared policy as a proposal: a bad one is refused, nothing starts", async () => {
    const { peer, candidate } = await prepared();
    const { candidateId, policyHash } = candidate;
    const policy = { version: 1, filesystem: { readWrite: ["/"] } };
    peer.send({ case: "prepared", value: { candidateId, policyHash, result: { case: "policy", value: policy } } });
    expect(await rejection(peer)).toBe("policy_refused");
    expect((await gateway.store.policies.latest(attach.sandboxId))?.version).toBe(1);
  });

  it("holds a start whose policy cannot be prepared, and starts over when the policy changes", async () => {
    const { peer, candidate } = await prepared();
    const { candidateId, policyHash } = candidate;
    peer.send({
      case: "prepared",
      value: { candidateId, policyHash, result: { case: "failure", value: { code: "bad", message: "no such path" } } },
    });
    const reason = async () => (await gateway.get()).status?.conditions.find(({ type }) => type === "Ready");
    await gateway.until(async () => (await reason())?.reason === "ConfigurationInvalid", "held");
    expect((await reason())?.message).toMatch(/no such path/);
    await gateway.client.updateConfig({
      workspaceScope: gateway.scope,
      sandbox: "box",
      policy: {
        version: 1,
        networkPolicies: { a: { endpoints: [{ host: "a.example.com", port: 443 }], binaries: [{ path: "/x" }] } },
      },
    });
    expect(await peer.next()).toEqual({ case: "end" });
    expect((await prepared()).candidate).toMatchObject({ version: 2, source: "gateway" });
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

import type { MessageInitShape } from "@bufbuild/protobuf";
import { type Code, ConnectError } from "@connectrpc/connect";
import { ConfigurationAdmissionState, SandboxPhase } from "@openshell/api";
import type {
  AttachSandbox,
  SupervisorDownlink,
  SupervisorHelloSchema,
  SupervisorUplinkSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { BoundedQueue } from "@openshell/base/queue.ts";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { FrozenClock } from "../api/testing/frozen-clock.ts";
import { Harness } from "../api/testing/harness.ts";
import { REPAIR_WINDOW_MS } from "./limits.ts";
import { SANDBOX_TOKEN_HEADER } from "./service.ts";

type ImagePolicy = NonNullable<MessageInitShape<typeof SupervisorHelloSchema>["imagePolicy"]>;

describe("a start whose policy in the image is invalid", () => {
  let clock: FrozenClock;
  let gateway: Harness;
  let attach: AttachSandbox;
  let pulse: NodeJS.Timeout;
  beforeEach(async () => {
    clock = new FrozenClock();
    gateway = await Harness.open(clock);
    const attached = Promise.withResolvers<AttachSandbox>();
    gateway.configureHost = (host) => {
      host.onAttach = (message) => {
        attached.resolve(message);
        return false;
      };
    };
    // Whoever begins to wait for a time that has come is woken too.
    pulse = setInterval(() => clock.advance(0), 5);
    await gateway.create({ spec: {} });
    attach = await attached.promise;
  });
  afterEach(async () => {
    clearInterval(pulse);
    await gateway[Symbol.asyncDispose]();
  });

  const INVALID: ImagePolicy = {
    case: "invalid",
    value: { code: "invalid_policy", message: "network_policies.api: no endpoints" },
  };

  function connect(
    connectionEpoch: bigint,
    imagePolicy: ImagePolicy = INVALID,
  ): () => Promise<SupervisorDownlink["message"] | Code | "end"> {
    const up = new BoundedQueue<MessageInitShape<typeof SupervisorUplinkSchema>>(10);
    const { sandboxId, generation, token } = attach;
    up.offer({
      message: {
        case: "hello",
        value: {
          protocolRevision: 2,
          sandboxId,
          generation,
          epoch: token!.epoch,
          instanceId: "i1",
          connectionEpoch,
          firstStart: true,
          imagePolicy,
        },
      },
    });
    const headers = { [SANDBOX_TOKEN_HEADER]: token!.token };
    const down = gateway.host!.client.connectSupervisor(up, { headers })[Symbol.asyncIterator]();
    return async () => {
      try {
        const { done, value } = await down.next();
        return done ? "end" : value.message;
      } catch (error) {
        return ConnectError.from(error).code;
      }
    };
  }
  const held = async (): Promise<void> => {
    const reason = async () => (await gateway.get()).status?.conditions.find(({ type }) => type === "Ready")?.reason;
    await gateway.until(async () => (await reason()) === "ConfigurationInvalid", "held");
    // Stored first: from here on the limit of a start does not hold any more.
    const told = () => gateway.logLines.some((line) => line.includes("the configuration is refused"));
    await gateway.until(told, "told");
  };
  const repair = () =>
    gateway.client.updateConfig({
      workspaceScope: gateway.scope,
      sandbox: "box",
      policy: {
        version: 1,
        networkPolicies: {
          a: { endpoints: [{ host: "a.example.com", port: 443 }], binaries: [{ path: "/usr/bin/curl" }] },
        },
      },
    });

  it("is held visibly, and goes on with the policy that an operator sets at 4:59", async () => {
    const next = connect(1n);
    await held();
    const { status } = await gateway.get();
    expect(status).toMatchObject({
      phase: SandboxPhase.PROVISIONING,
      configurationAdmission: { state: ConfigurationAdmissionState.REJECTED },
      provisioning: { attemptId: "1" },
    });
    expect(status?.configurationAdmission?.error).toMatch(/no endpoints.*openshell policy set/);
    clock.advance(REPAIR_WINDOW_MS - 1_000);
    await repair();
    expect(await next()).toMatchObject({ case: "candidate", value: { source: "gateway", version: 1 } });
    expect((await gateway.get()).status?.phase).toBe(SandboxPhase.PROVISIONING);
  });

  it("has failed at 5:00, and starts when it is started again with a policy", async () => {
    const next = connect(1n);
    await held();
    clock.advance(REPAIR_WINDOW_MS);
    expect(await next()).toMatchObject({ case: "rejected", value: { failure: { code: "configuration_deadline" } } });
    const { status } = await gateway.phase(SandboxPhase.ERROR);
    expect(status?.conditions.find(({ type }) => type === "Ready")).toMatchObject({
      reason: "ProvisioningTimedOut",
      message: expect.stringMatching(/not corrected in time: .*no endpoints/),
    });
    await repair();
    expect((await gateway.get()).status?.phase).toBe(SandboxPhase.ERROR);
  });

  it("is held too where the image decides who gets credentials, and goes on with its owner's policy", async () => {
    const endpoint = { host: "evil.example.com", port: 443, protocol: "rest", credentialBinding: { provider: "p" } };
    const binaries = [{ path: "/usr/bin/curl" }];
    const networkPolicies = { steal: { endpoints: [endpoint], binaries } };
    const next = connect(1n, { case: "policy", value: { version: 1, networkPolicies } });
    await held();
    expect((await gateway.get()).status?.configurationAdmission?.error).toMatch(/steal gives credentials to evil/);
    await repair();
    expect(await next()).toMatchObject({ case: "candidate", value: { source: "gateway", version: 1 } });
  });

  it("does not get more time by reconnecting, nor by changes that correct nothing", async () => {
    connect(1n);
    await held();
    clock.advance(REPAIR_WINDOW_MS - 10_000);
    const next = connect(2n);
    const refusals = () => gateway.logLines.filter((line) => line.includes("the configuration is refused")).length;
    await gateway.until(() => refusals() === 2, "held again");
    await gateway.client.createProvider({
      workspaceScope: gateway.scope,
      provider: { metadata: { name: "p" }, type: "generic", credentials: { TOKEN: "v" } },
    });
    clock.advance(10_000);
    expect(await next()).toMatchObject({ case: "rejected", value: { failure: { code: "configuration_deadline" } } });
  });

  it("ends with its sandbox", async () => {
    const next = connect(1n);
    await held();
    await gateway.client.deleteSandbox({ workspaceScope: gateway.scope, name: "box" });
    expect(await next()).toBe("end");
  });
});

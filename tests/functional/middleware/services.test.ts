import { Code } from "@connectrpc/connect";
import { SandboxPhase, type SandboxPolicy } from "@openshell/api";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { policyMessage } from "../../support/api.ts";
import { TestAuthority } from "../../support/internet/ca.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { MiddlewareServer } from "../../support/middleware-service.ts";
import { mode } from "../../support/mode.ts";
import { GatewayProcess } from "../gateway/gateway-process.ts";
import { MAIN_PROCESS, run, untilGone, untilPhase, workspaceScope } from "../gateway/sandboxes.ts";

/** A policy that names services; `onError` for all. */
function policy(names: readonly string[], onError = "fail_closed", settings = "{}"): SandboxPolicy {
  const entries = names.map(
    (name, order) =>
      `  ${name}: {middleware: ${name}, order: ${order}, on_error: ${onError}, config: ${settings}, endpoints: {include: [elsewhere.example.com]}}`,
  );
  return policyMessage(`version: 1\nnetwork_middlewares:\n${entries.join("\n")}\n`);
}

interface Registration {
  readonly name: string;
  readonly port: number;
  /** Path of the CA of an https endpoint. */
  readonly ca?: string;
}

/** A second, so that the reconcile can be waited for. */
const RECONCILE = "[openshell.gateway]\nconfig_consistency_check_interval_seconds = 1\n";

function table({ name, port, ca }: Registration): string {
  const transport =
    ca === undefined
      ? `grpc_endpoint = "http://127.0.0.1:${port}"\nallow_insecure_transport = true`
      : `grpc_endpoint = "https://127.0.0.1:${port}"\ntls_ca_cert_path = ${JSON.stringify(ca)}`;
  return `[[openshell.supervisor.middleware]]\nname = "${name}"\nmax_payload_bytes = 65536\ntimeout = "5s"\n${transport}\n`;
}

// The host is the same program in both modes.
describe.skipIf(mode === "user")("middleware services", { timeout: 60_000 }, () => {
  let before: Inventory;
  let gateway: GatewayProcess;
  let authority: TestAuthority;
  /** Ports of services that are not always there. */
  let port: { readonly guard: number; readonly late: number };
  let guard: MiddlewareServer;
  let files: { readonly right: string; readonly wrong: string };

  const freePort = async (): Promise<number> => {
    const server = await MiddlewareServer.start();
    server.kill();
    return server.port;
  };
  const restart = async (services: readonly Registration[]): Promise<void> => {
    gateway.home.writeGatewayConfig({ network: "", extra: [RECONCILE, ...services.map(table)].join("\n") });
    await gateway.end("SIGKILL");
    await gateway.started();
  };
  const client = () => gateway.local();
  const status = async (name: string) => (await client().getSandbox({ workspaceScope, name })).sandbox!.status!;
  const condition = async (name: string, type: string) =>
    (await status(name)).conditions.find((one) => one.type === type);
  const create = async (name: string, wanted: SandboxPolicy) => {
    await client().createSandbox({ workspaceScope, name, spec: { command: ["sleep", "1000"], policy: wanted } });
    return {
      [Symbol.asyncDispose]: async () => {
        await client().deleteSandbox({ workspaceScope, name });
        await untilGone(client(), name);
      },
    };
  };
  const update = (sandbox: string, wanted: SandboxPolicy) =>
    client().updateConfig({ workspaceScope, sandbox, policy: wanted });

  beforeAll(async () => {
    before = takeInventory();
    authority = await TestAuthority.create();
    guard = await MiddlewareServer.start();
    port = { guard: guard.port, late: await freePort() };
    gateway = new GatewayProcess();
    files = {
      right: gateway.home.write("ca.pem", authority.pem),
      wrong: gateway.home.write("other.pem", (await TestAuthority.create()).pem),
    };
    gateway.home.writeGatewayConfig({
      network: "",
      extra: [RECONCILE, table({ name: "guard", port: port.guard }), table({ name: "late", port: port.late })].join(
        "\n",
      ),
    });
    await gateway.started();
  }, 60_000);
  afterAll(async () => {
    guard.kill();
    // In order: the host ends with the gateway when it holds nothing.
    await gateway.end();
    await gateway[Symbol.asyncDispose]();
    await expectNoLeaks(before);
  });

  test("that the gateway does not know are refused, with what to do", async () => {
    const refused = create("unknown", policy(["nobody"]));
    await expect(refused).rejects.toMatchObject({ code: Code.FailedPrecondition });
    await expect(refused).rejects.toThrow(/'nobody', which is not registered.*gateway\.toml/s);
  });

  test.each(["fail_closed", "fail_open"])(
    "that do not answer keep a sandbox from starting until they do (%s)",
    async (onError) => {
      const name = `late-${onError.replace("_", "-")}`;
      await using _sandbox = await create(name, policy(["guard", "late"], onError));
      await expect
        .poll(async () => (await condition(name, "ConfigurationReady"))?.message ?? "", { timeout: 15_000 })
        .toContain(`middleware 'late' at http://127.0.0.1:${port.late}: no connection (ECONNREFUSED)`);
      expect((await status(name)).phase).toBe(SandboxPhase.PROVISIONING);
      await using _late = await MiddlewareServer.start({ port: port.late });
      await untilPhase(client(), name, SandboxPhase.READY);
      expect((await condition(name, "ConfigurationReady"))?.status).not.toBe("False");
      const config = await client().getSandboxConfig({ workspaceScope: workspaceScope, name });
      expect(config.supervisorMiddlewareServices).toMatchObject([
        { name: "guard", grpcEndpoint: `http://127.0.0.1:${port.guard}`, maxPayloadBytes: 65_536n },
        { name: "late", audience: "urn:openshell:extension:middleware:late", allowInsecureTransport: true },
      ]);
    },
  );

  test("are connected once; a change of the policy alone asks about its settings and connects to nothing", async () => {
    const describes = guard.describes;
    await using _sandbox = await create("box", policy(["guard"]));
    await untilPhase(client(), "box", SandboxPhase.READY);
    await update("box", policy(["guard"], "fail_closed", "{level: 2}"));
    await expect.poll(async () => (await status("box")).currentPolicyVersion).toBe(2);
    expect(guard.describes).toBe(describes + 1);
    expect(guard.asked.at(-1)).toEqual({ level: 2 });
  });

  test("that fail in a live change leave the workload, what works and the new policy; the reconcile makes it whole", async () => {
    await using _sandbox = await create("live", policy(["guard"]));
    await untilPhase(client(), "live", SandboxPhase.READY);
    const main = await run(client(), "live", "sh", "-c", MAIN_PROCESS);
    const describes = guard.describes;
    await update("live", policy(["guard", "late"]));
    await expect
      .poll(async () => condition("live", "PolicyCurrent"), { timeout: 10_000 })
      .toMatchObject({ status: "False", reason: "Degraded", message: expect.stringContaining("middleware 'late'") });
    expect(await status("live")).toMatchObject({ phase: SandboxPhase.READY, currentPolicyVersion: 2 });
    expect(await run(client(), "live", "sh", "-c", MAIN_PROCESS)).toBe(main);
    await using _late = await MiddlewareServer.start({ port: port.late });
    await expect.poll(async () => (await condition("live", "PolicyCurrent"))?.status, { timeout: 10_000 }).toBe("True");
    expect(guard.describes).toBe(describes);
    expect(await run(client(), "live", "sh", "-c", MAIN_PROCESS)).toBe(main);
  });

  test("that die are dialled again, and a broken new registration leaves the connection that works", async () => {
    await using _sandbox = await create("kept", policy(["guard"]));
    await untilPhase(client(), "kept", SandboxPhase.READY);
    const main = await run(client(), "kept", "sh", "-c", MAIN_PROCESS);
    guard.kill();
    // While it is away, a change that does not need it is applied.
    await update("kept", policy(["guard"], "fail_open"));
    await expect.poll(async () => (await status("kept")).currentPolicyVersion).toBe(2);
    expect(await condition("kept", "PolicyCurrent")).toBeUndefined();
    guard = await MiddlewareServer.start({ port: port.guard });
    await expect.poll(() => guard.describes, { timeout: 15_000 }).toBe(1);
    await restart([{ name: "guard", port: port.late }]);
    await expect
      .poll(async () => condition("kept", "PolicyCurrent"), { timeout: 15_000 })
      .toMatchObject({ status: "False", reason: "Degraded", message: expect.stringContaining("ECONNREFUSED") });
    expect((await status("kept")).phase).toBe(SandboxPhase.READY);
    expect(await run(client(), "kept", "sh", "-c", MAIN_PROCESS)).toBe(main);
    await restart([
      { name: "guard", port: port.guard },
      { name: "late", port: port.late },
    ]);
    await expect.poll(async () => (await condition("kept", "PolicyCurrent"))?.status, { timeout: 15_000 }).toBe("True");
    // The one connection of before served all the time.
    expect(guard.describes).toBe(1);
  });

  test("are verified over TLS: another CA than the registered one starts nothing", async () => {
    const tls = await authority.issue(["127.0.0.1"]);
    await using secure = await MiddlewareServer.start({ tls });
    await restart([{ name: "secure", port: secure.port, ca: files.wrong }]);
    await using _sandbox = await create("tls", policy(["secure"]));
    await expect
      .poll(async () => (await condition("tls", "ConfigurationReady"))?.message ?? "", { timeout: 15_000 })
      .toMatch(/middleware 'secure' at https:\/\/127\.0\.0\.1:\d+: no connection \([A-Z_]+\)/);
    expect(secure.describes).toBe(0);
    await restart([{ name: "secure", port: secure.port, ca: files.right }]);
    await untilPhase(client(), "tls", SandboxPhase.READY);
  });
});

import { create } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { ConfigSnapshotRevisionSchema, DeletionOutcome, SandboxPhase } from "@openshell/api";
import { DriverError } from "@openshell/drivers/driver.ts";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { SANDBOX_TOKEN_HEADER } from "../sessions/service.ts";
import { FakeSupervisor } from "./testing/fake-host.ts";
import { Harness } from "./testing/harness.ts";

describe("the life of a sandbox", () => {
  let gateway: Harness;
  beforeEach(async () => {
    gateway = await Harness.open();
  });
  afterEach(() => gateway[Symbol.asyncDispose]());

  it("is created, gets ready, runs a command, is deleted and leaves nothing", async () => {
    const created = await gateway.create();
    expect(created.status?.phase).toBe(SandboxPhase.PROVISIONING);
    const ready = await gateway.phase(SandboxPhase.READY);
    expect(ready.status?.conditions.map(({ type, status }) => [type, status])).toContainEqual(["Ready", "True"]);
    const events = [];
    for await (const event of gateway.client.execSandbox({
      workspaceScope: gateway.scope,
      sandbox: "box",
      command: ["true"],
    })) {
      events.push(event.payload);
    }
    expect(events.map((payload) => payload.case)).toEqual(["stdout", "exit"]);
    const deleted = await gateway.client.deleteSandbox({ workspaceScope: gateway.scope, name: "box" });
    expect(deleted).toMatchObject({ outcome: DeletionOutcome.COMPLETED, sandboxId: created.metadata!.id });
    expect(gateway.driver.sandboxes.size).toBe(0);
    expect(await gateway.store.sandboxes.byId(created.metadata!.id)).toBeUndefined();
    expect(await gateway.store.idBlocks.all()).toEqual([]);
    expect(await gateway.store.policies.latest(created.metadata!.id)).toBeUndefined();
    await expect(gateway.get()).rejects.toMatchObject({ code: Code.NotFound, rawMessage: "sandbox not found" });
  });

  it("stops and starts as a new generation that is launched once", async () => {
    const { metadata } = await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    const stopped = await gateway.client.stopSandbox({ workspaceScope: gateway.scope, name: "box" });
    expect(stopped.sandbox?.status?.phase).toBe(SandboxPhase.STOPPED);
    const again = await gateway.client.stopSandbox({ workspaceScope: gateway.scope, name: "box" });
    expect(again.sandbox?.status?.phase).toBe(SandboxPhase.STOPPED);
    const started = await gateway.client.startSandbox({ workspaceScope: gateway.scope, name: "box" });
    expect(started.sandbox?.status?.phase).toBe(SandboxPhase.STARTING);
    await gateway.phase(SandboxPhase.READY);
    expect([...gateway.driver.launches]).toEqual([
      [`${metadata!.id}/1`, 1],
      [`${metadata!.id}/2`, 1],
    ]);
  });

  it.each([
    [0, SandboxPhase.COMPLETED, "MainProcessCompleted"],
    [7, SandboxPhase.ERROR, "MainProcessFailed"],
  ])("records exit code %i of the main process and gives compute back", async (code, phase, reason) => {
    const { metadata } = await gateway.create({ spec: { command: ["true"] } });
    await gateway.phase(SandboxPhase.READY);
    gateway.host!.attached.get(metadata!.id)!.exit(code);
    const ended = await gateway.phase(phase);
    expect(ended.status?.exitCode).toBe(code);
    expect(ended.status?.conditions.find(({ type }) => type === "Ready")).toMatchObject({ status: "False", reason });
    const exec = gateway.client.execSandbox({ workspaceScope: gateway.scope, sandbox: "box", command: ["true"] });
    await expect(exec[Symbol.asyncIterator]().next()).rejects.toMatchObject({
      code: Code.FailedPrecondition,
      rawMessage: expect.stringMatching(/phase (COMPLETED|ERROR) .*\. Start it again/),
    });
    await gateway.until(() => gateway.driver.sandboxes.get(metadata!.id)?.running === undefined, "compute released");
    await gateway.client.startSandbox({ workspaceScope: gateway.scope, name: "box" });
    expect((await gateway.phase(SandboxPhase.READY)).status?.exitCode).toBeUndefined();
  });

  it("deletes an ephemeral sandbox once its main process has ended", async () => {
    const { metadata } = await gateway.create({ annotations: { "openshell.nvidia.com/retention": "ephemeral" } });
    await gateway.phase(SandboxPhase.READY);
    gateway.host!.attached.get(metadata!.id)!.exit(3);
    await gateway.until(async () => (await gateway.store.sandboxes.byId(metadata!.id)) === undefined, "deleted");
    expect(gateway.driver.sandboxes.size).toBe(0);
  });

  it("attaches to the main process from before it runs until after it has ended", async () => {
    gateway.configureHost = (host) => {
      host.relay = async (relay) => {
        expect((await relay.down.next()).value.message.case).toBe("attach");
        await relay.send({ case: "stdout", value: { data: Buffer.from("late") } });
        await relay.send({ case: "exit", value: { exitCode: 5 } });
      };
    };
    const { metadata } = await gateway.create({
      awaitMainProcessAttachment: true,
      annotations: { "openshell.nvidia.com/retention": "ephemeral" },
    });
    await gateway.until(() => gateway.host?.attached.get(metadata!.id)?.mainProcess !== undefined, "started");
    expect(gateway.host!.attached.get(metadata!.id)!.mainProcess?.awaitAttachment).toBe(true);
    gateway.host!.attached.get(metadata!.id)!.exit(5);
    await gateway.phase(SandboxPhase.ERROR);
    const seen = [];
    const start = { workspaceScope: gateway.scope, sandbox: "box" };
    const input = (async function* () {
      yield { payload: { case: "start" as const, value: start } };
    })();
    const headers = { "openshell-attach": "main-process" };
    for await (const event of gateway.client.execSandboxInteractive(input, { headers })) seen.push(event.payload);
    expect(seen.map(({ case: kind }) => kind)).toEqual(["stdout", "exit"]);
    await gateway.until(async () => (await gateway.store.sandboxes.byId(metadata!.id)) === undefined, "deleted");
  });

  it("a host that died while init was started left the new sandbox without any host", async () => {
    const launched = Promise.withResolvers<void>();
    gateway.driver.before = async (operation) => {
      if (operation !== "create") return;
      gateway.driver.before = () => {};
      gateway.killHost();
      launched.resolve();
    };
    const creating = gateway.create();
    await launched.promise;
    await creating;
    expect((await gateway.phase(SandboxPhase.READY)).metadata?.name).toBe("box");
  });

  it("re-attaches after the host died, without starting the workload again", async () => {
    const { metadata } = await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    gateway.killHost();
    await gateway.until(() => gateway.host?.attached.get(metadata!.id)?.accepted !== undefined, "attached again");
    expect(gateway.host!.attached.get(metadata!.id)!.accepted?.mainProcess).toBeUndefined();
    expect(gateway.workloads.get(`${metadata!.id}/1`)?.started).toBe(1);
    expect(gateway.driver.launches.get(`${metadata!.id}/1`)).toBe(1);
  });

  it("is not called READY while its supervisor is away (#3314)", async () => {
    const { metadata } = await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    const held = gateway.host!.attached.get(metadata!.id)!;
    held.kill();
    const { status } = await gateway.phase(SandboxPhase.PROVISIONING);
    expect(status?.conditions.find(({ type }) => type === "Ready")).toMatchObject({
      status: "False",
      reason: "SupervisorNotConnected",
    });
    void new FakeSupervisor(gateway.host!, held.attach).run();
    await gateway.phase(SandboxPhase.READY);
  });

  it("reports a sandbox whose processes vanished, and never starts them again by itself", async () => {
    const { metadata } = await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    gateway.driver.end(metadata!.id);
    gateway.killHost();
    const failed = await gateway.phase(SandboxPhase.ERROR);
    expect(failed.status?.exitCode).toBeUndefined();
    expect(failed.status?.conditions.find(({ type }) => type === "Ready")?.reason).toMatch(
      /ComputeResourceMissing|SandboxEnded/,
    );
    expect(gateway.driver.launches.get(`${metadata!.id}/1`)).toBe(1);
  });

  it("stops a sandbox whose files take too much of the disk, says what to do, and lets it be started again", async () => {
    const { metadata } = await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    gateway.driver.exceedDisk(metadata!.id, 3 * 2 ** 30, 2 * 2 ** 30);
    const failed = await gateway.phase(SandboxPhase.ERROR);
    expect(failed.status?.conditions.find(({ type }) => type === "Ready")).toMatchObject({
      reason: "DiskLimitExceeded",
      message: expect.stringMatching(/take 3\.0 GiB or more of 2\.0 GiB .* raise \[local\] sandbox_disk_limit/),
    });
    await gateway.until(() => gateway.driver.calls.includes(`stop ${metadata!.id}`), "compute released");
    await gateway.client.startSandbox({ workspaceScope: gateway.scope, name: "box" });
    await gateway.phase(SandboxPhase.READY);
  });

  it("stops a sandbox that redirected a repository in a volume, says so, and lets it be started again", async () => {
    const { metadata } = await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    gateway.driver.redirect(metadata!.id, "/p/.git/commondir");
    const failed = await gateway.phase(SandboxPhase.ERROR);
    expect(failed.status?.conditions.find(({ type }) => type === "Ready")).toMatchObject({
      reason: "VolumeTampered",
      message: expect.stringMatching(/^HIGH: .*\/p\/\.git\/commondir.* moved aside/),
    });
    await gateway.client.startSandbox({ workspaceScope: gateway.scope, name: "box" });
    await gateway.phase(SandboxPhase.READY);
  });

  it("names start-up files that changed in a volume, when the sandbox is shown and when it has ended", async () => {
    gateway.driver.planted = { files: [{ path: "/src/.envrc\u001b", reason: "direnv" }], more: 2, complete: false };
    const { metadata } = await gateway.create({
      spec: { template: { driverConfig: { local: { volumes: ["/src:/work"] } } } },
    });
    await gateway.phase(SandboxPhase.READY);
    const condition = async () => {
      const { sandbox } = await gateway.client.getSandbox({ workspaceScope: gateway.scope, name: "box" });
      return sandbox?.status?.conditions.find(({ type }) => type === "VolumeStartupFiles");
    };
    expect(await condition()).toMatchObject({
      status: "False",
      reason: "StartupFilesChanged",
      message: expect.stringMatching(/^HIGH: .*\/src\/\.envrc\\x1b \(direnv\), and 2 more; .*too large/),
    });
    gateway.driver.planted = { files: [{ path: "/src/.npmrc", reason: "npm" }], more: 0, complete: true };
    await gateway.client.stopSandbox({ workspaceScope: gateway.scope, name: "box" });
    await gateway.phase(SandboxPhase.STOPPED);
    expect((await condition())?.message).toMatch(/\.npmrc \(npm\)\. Read them/);
    const { logs } = await gateway.client.getSandboxLogs({ workspaceScope: gateway.scope, sandbox: "box" });
    expect(logs.filter(({ message }) => message.startsWith("StartupFilesChanged: HIGH: "))).toHaveLength(2);
    // What the owner takes away is no longer complained of once it runs again.
    gateway.driver.planted = { files: [], more: 0, complete: true };
    await gateway.client.startSandbox({ workspaceScope: gateway.scope, name: "box" });
    await gateway.phase(SandboxPhase.READY);
    expect(await condition()).toMatchObject({ status: "True", reason: "Unchanged" });
    void metadata;
  });

  it("says UNAVAILABLE, not a code, when the host dies under a command", async () => {
    gateway.configureHost = (host) => {
      host.relay = async (relay) => {
        await relay.down.next();
        await relay.send({ case: "stdout", value: { data: Buffer.from("begun") } });
        relay.kill();
      };
    };
    await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    const seen: (string | undefined)[] = [];
    const run = async (): Promise<void> => {
      for await (const event of gateway.client.execSandbox({
        workspaceScope: gateway.scope,
        sandbox: "box",
        command: ["x"],
      })) {
        seen.push(event.payload.case);
      }
    };
    const error = await run().catch((reason: unknown) => ConnectError.from(reason));
    expect(error).toMatchObject({ code: Code.Unavailable });
    expect((error as ConnectError).rawMessage).toMatch(/outcome of the command is unknown/);
    expect(seen).not.toContain("exit");
  });

  const ready = async () => (await gateway.get()).status?.conditions.find(({ type }) => type === "Ready");

  it("says why a start does not get on, and goes on as soon as it can", async () => {
    gateway.hostsAvailable = false;
    await gateway.create();
    await gateway.until(async () => (await ready())?.reason === "DependenciesNotReady", "told");
    expect((await ready())?.message).toMatch(/no host can be started/);
    gateway.hostsAvailable = true;
    await gateway.phase(SandboxPhase.READY);
    expect([...gateway.driver.launches.values()]).toEqual([1]);
  });

  it("fails for good what the driver refuses for good, with its words, and can be deleted", async () => {
    gateway.driver.before = (operation) => {
      if (operation === "create")
        throw new DriverError("volume_unavailable", "/src is gone", { next: "Make it again" });
    };
    await gateway.create();
    const failed = await gateway.phase(SandboxPhase.ERROR);
    expect(failed.status?.conditions.find(({ type }) => type === "Ready")).toMatchObject({
      reason: "StartFailed",
      message: "/src is gone. Make it again",
    });
    gateway.driver.before = () => {};
    const { outcome } = await gateway.client.deleteSandbox({ workspaceScope: gateway.scope, name: "box" });
    expect(outcome).toBe(DeletionOutcome.COMPLETED);
  });

  it("tells the announced client why an ephemeral sandbox did not start, before it is gone", async () => {
    gateway.driver.before = (operation) => {
      if (operation === "create") throw new DriverError("identity_refused", "no such user");
    };
    const annotations = { "openshell.nvidia.com/retention": "ephemeral" };
    const { metadata } = await gateway.create({ awaitMainProcessAttachment: true, annotations });
    await gateway.phase(SandboxPhase.ERROR);
    const input = (async function* () {
      yield { payload: { case: "start" as const, value: { workspaceScope: gateway.scope, sandbox: "box" } } };
    })();
    const headers = { "openshell-attach": "main-process" };
    const attached = gateway.client.execSandboxInteractive(input, { headers })[Symbol.asyncIterator]().next();
    await expect(attached).rejects.toMatchObject({
      code: Code.FailedPrecondition,
      message: expect.stringMatching(/no such user/),
    });
    await gateway.until(async () => (await gateway.store.sandboxes.byId(metadata!.id)) === undefined, "gone");
  });

  it("stops before it was ever created, and starts then", async () => {
    const gate = Promise.withResolvers<void>();
    gateway.driver.before = async (operation) => {
      if (operation !== "create") return;
      await gate.promise;
      throw new DriverError("launch_failed", "not now", { retryable: true });
    };
    await gateway.create();
    const stop = gateway.client.stopSandbox({ workspaceScope: gateway.scope, name: "box" });
    await gateway.until(async () => (await gateway.get()).status?.phase === SandboxPhase.STOPPING, "stopping");
    gateway.driver.before = () => {};
    gate.resolve();
    expect((await stop).sandbox?.status?.phase).toBe(SandboxPhase.STOPPED);
    expect(gateway.driver.sandboxes.size).toBe(0);
    await gateway.client.startSandbox({ workspaceScope: gateway.scope, name: "box" });
    await gateway.phase(SandboxPhase.READY);
  });

  it("lets the supervisor speak for its sandbox until a stop has succeeded (GATOR-07441545-02)", async () => {
    const { metadata } = await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    const { publicClient, attached } = gateway.host!;
    const headers = { [SANDBOX_TOKEN_HEADER]: attached.get(metadata!.id)!.attach.token!.token };
    const speak = () => publicClient.getSandboxConfig({ workspaceScope: gateway.scope, name: "box" }, { headers });
    const heard: string[] = [];
    gateway.driver.before = async (operation) => {
      if (operation !== "stop") return;
      heard.push(
        await speak().then(
          () => "yes",
          (error: unknown) => Code[ConnectError.from(error).code],
        ),
      );
      if (heard.length === 1) throw new Error("busy");
    };
    await gateway.client.stopSandbox({ workspaceScope: gateway.scope, name: "box" });
    await gateway.phase(SandboxPhase.STOPPED);
    expect(heard).toEqual(["yes", "yes"]);
    await expect(speak()).rejects.toMatchObject({ code: Code.Unauthenticated });
  });

  it("answers ACCEPTED when a deletion does not succeed at once, and finishes it by itself", async () => {
    const { metadata } = await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    let failures = 0;
    gateway.driver.before = (operation) => {
      if (operation === "delete" && failures++ === 0) throw new Error("busy");
    };
    const target = create(ConfigSnapshotRevisionSchema, { component: { case: "sandboxConfig", value: {} } });
    const change = {
      operationId: "o",
      sandboxId: metadata!.id,
      component: "config",
      target,
      state: "pending",
    } as const;
    await gateway.store.write(gateway.store.operations.record([change], 1));
    const { outcome } = await gateway.client.deleteSandbox({ workspaceScope: gateway.scope, name: "box" });
    expect(outcome).toBe(DeletionOutcome.ACCEPTED);
    // What was on its way into the sandbox will not come.
    expect((await gateway.store.operations.get("o"))?.state).toBe("cancelled");
    await gateway.until(async () => (await gateway.store.sandboxes.byId(metadata!.id)) === undefined, "gone");
    expect(gateway.driver.sandboxes.size).toBe(0);
  });

  it("shows sandboxes of before a restart of the machine as stopped, with their files", async () => {
    await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    await gateway.reboot();
    const stopped = await gateway.phase(SandboxPhase.STOPPED);
    expect(stopped.status?.conditions.find(({ type }) => type === "Ready")?.reason).toBe("MachineRestarted");
    await gateway.client.startSandbox({ workspaceScope: gateway.scope, name: "box" });
    await gateway.phase(SandboxPhase.READY);
    expect(gateway.driver.calls.filter((call) => call.startsWith("start"))).toHaveLength(1);
  });

  it("sets aside what the driver holds and no record knows, and says where", async () => {
    const { metadata } = await gateway.create();
    await gateway.phase(SandboxPhase.READY);
    await gateway.store.write(gateway.store.sandboxes.remove(metadata!.id, "any"));
    await gateway.restart();
    await gateway.until(() => gateway.driver.lost.includes(metadata!.id), "orphan set aside");
    expect(gateway.driver.sandboxes.size).toBe(0);
    await gateway.until(() => gateway.logLines.some((line) => line.includes("set aside for 7 days")), "warning");
    expect(gateway.logLines.join("")).toContain(`/state/sandboxes/.lost-1-${metadata!.id}/home`);
  });

  it("counts what runs, and stops it when the gateway is told to", async () => {
    await gateway.create();
    await gateway.create({ name: "other" });
    await gateway.phase(SandboxPhase.READY);
    await gateway.phase(SandboxPhase.READY, "other");
    expect(await gateway.services.runningSandboxes()).toBe(2);
    expect(await gateway.services.stopSandboxes(5_000)).toBe(0);
    expect((await gateway.get()).status?.phase).toBe(SandboxPhase.STOPPED);
  });
});

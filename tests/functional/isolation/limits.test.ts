import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { Boundary } from "@openshell/boundary";
import type { DriverEvent, SandboxIntent, StartedSandbox } from "@openshell/drivers/driver.ts";
import { ownCgroups } from "@openshell/drivers/local/cgroups.ts";
import { shortId } from "@openshell/drivers/local/launch.ts";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { TestInternet } from "../../support/internet/index.ts";
import { confine, type DriverBench, openBench, shell } from "../../support/local-driver.ts";
import { inMode, mode } from "../../support/mode.ts";
import { TestOpenShell } from "../../support/openshell.ts";

/** Limits that a sandbox meets: they hold, and whoever looks is told which one it was. */

describe("limits that the kernel counts", () => {
  let bench: DriverBench;
  let intent: SandboxIntent;
  let started: StartedSandbox;
  let boundary: Boundary;
  const events: DriverEvent[] = [];
  const watching = new AbortController();

  beforeAll(async () => {
    bench = await openBench();
    void (async () => {
      for await (const event of bench.driver.watch(watching.signal)) events.push(event);
    })();
    intent = bench.intent({
      resources: { cpuMillis: undefined, memoryBytes: inMode({ root: 64n << 20n, user: undefined }), pids: 40 },
    });
    started = await bench.driver.create(intent);
    boundary = await confine(started, intent);
  });
  afterAll(async () => {
    watching.abort();
    await boundary?.[Symbol.asyncDispose]();
    await bench?.[Symbol.asyncDispose]();
  });

  test("processor: a sandbox stands back behind everything else, where its cgroup can say so", async () => {
    const { unified, unifiedControllers, v1 } = ownCgroups();
    const inV2 = unifiedControllers.includes("cpu");
    const parent = inV2 ? unified! : v1.get("cpu")!;
    const own = readdirSync(parent).filter((name) => name.endsWith(`-${shortId(started.sandboxId)}`));
    const weights = own.map((name) =>
      Number(readFileSync(join(parent, name, inV2 ? "cpu.weight" : "cpu.shares"), "utf8")),
    );
    expect(weights).toEqual(inMode({ root: [inV2 ? 25 : 256], user: [] }));
  });

  test("processes: forks are refused as root and as a user; memory: what takes too much is ended", async () => {
    const forks = await shell(boundary, started, "for i in $(seq 60); do sleep 30 >/dev/null 2>&1 & done; echo done");
    expect(forks.stdout).not.toContain("done");
    expect(forks.stderr).toMatch(/fork/i);
    if (mode === "root") {
      const memory = await shell(boundary, started, `exec perl -e '$x = "a" x (300 << 20); print length $x'`);
      expect(memory).toMatchObject({ stdout: "", exit: { kind: "signaled", signal: 9 } });
    }
    // The last look is before the cgroups are gone.
    await bench.driver.stop(started.sandboxId);
    await expect
      .poll(() => events.map((event) => (event.kind === "limit" ? event.limit : event.kind)).toSorted())
      // Where no cgroup can be made RLIMIT_NPROC holds, which nobody counts.
      .toEqual(inMode({ root: ["memory", "processes"], user: [] }));
    for (const event of events) expect(event).toMatchObject({ sandboxId: started.sandboxId, generation: 1n });
  });
});

describe("limits in a sandbox's log", () => {
  let net: TestInternet;
  let openshell: TestOpenShell;
  beforeAll(async () => {
    net = await TestInternet.start();
    openshell = TestOpenShell.create(net);
  });
  afterAll(async () => {
    await openshell?.[Symbol.asyncDispose]();
    await net?.[Symbol.asyncDispose]();
  });

  const create = (name: string, flags: readonly string[], command: readonly string[]) =>
    openshell.run(["sandbox", "create", "--name", name, "--detach", ...flags, "--", ...command]);
  const linesOf = async (name: string, text: string) =>
    (await openshell.ok(["logs", name])).split("\n").filter((line) => line.includes(text));

  test("a flood of DNS questions is one line with the limit's name and what to do", async () => {
    const flood = `use Socket; socket(S, PF_INET, SOCK_DGRAM, 0); my $to = sockaddr_in(53, inet_aton("127.0.0.1"));
      for my $n (1..600) { send(S, pack("nnnnnn", $n, 256, 1, 0, 0, 0) . "\\x01a\\x07example\\x00" . pack("nn", 1, 1), 0, $to) } print "sent"`;
    expect((await create("dns", [], ["sleep", "infinity"])).exitCode).toBe(0);
    expect(await openshell.ok(["sandbox", "exec", "--name", "dns", "--", "perl", "-e", flood])).toContain("sent");
    await expect.poll(() => linesOf("dns", "dns_queries_per_second"), { timeout: 10_000 }).toHaveLength(1);
    const [line] = await linesOf("dns", "dns_queries_per_second");
    expect(line).toMatch(/FINDING.*limit dns_queries_per_second \(200\).*questions wait/);
  });

  test.runIf(mode === "root")("a main process that used all memory: the log says so beside its signal", async () => {
    await create("memory", ["--memory", "48Mi"], ["perl", "-e", '$x = "a" x (300 << 20); print length $x']);
    await expect.poll(() => linesOf("memory", "LimitReached"), { timeout: 10_000 }).toHaveLength(1);
    expect((await linesOf("memory", "LimitReached"))[0]).toContain("memory: the kernel ended a process once");
  });
});

import { spawn } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { SandboxIntent } from "@openshell/drivers/driver.ts";
import type { LocalDriverOptions } from "@openshell/drivers/local/driver.ts";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { takeInventory } from "../../support/leaks.ts";
import { confine, type DriverBench, expectNoDriverLeaks, openBench, shell } from "../../support/local-driver.ts";

const packages = resolve(import.meta.dirname, "../../../packages");

/** A program of its own that opens the driver and makes one call, so that it can be killed in the middle of it. */
function program(options: LocalDriverOptions, intent: SandboxIntent, call: "create" | "delete"): string {
  const plain = { ...intent, generation: undefined, nonce: Buffer.from(intent.nonce).toString("hex") };
  return `
    import { openLocalDriver } from ${JSON.stringify(join(packages, "drivers/src/local/driver.ts"))};
    const driver = await openLocalDriver(${JSON.stringify(options)});
    const plain = ${JSON.stringify(plain)};
    const intent = { ...plain, generation: 1n, nonce: Buffer.from(plain.nonce, "hex") };
    process.stdout.write("ready\\n");
    process.stdin.once("data", async () => {
      await driver.${call}(${call === "create" ? "intent" : "intent.sandboxId"});
      process.stdout.write("done\\n");
    });
  `;
}

describe("a driver that is killed in the middle of", () => {
  let bench: DriverBench;
  beforeAll(async () => {
    bench = await openBench();
  });
  afterAll(() => bench[Symbol.asyncDispose]());

  /** Starts the call, kills the process after `delayMs`; answers whether the call was finished by then. */
  async function interrupt(intent: SandboxIntent, call: "create" | "delete", delayMs: number): Promise<boolean> {
    const file = join(bench.folder, `${call}.ts`);
    writeFileSync(file, program(bench.options, intent, call));
    const child = spawn(process.execPath, [file], { stdio: ["pipe", "pipe", "inherit"] });
    let output = "";
    const ready = new Promise<void>((done) => {
      child.stdout.on("data", (data: Buffer) => {
        output += data.toString();
        if (output.startsWith("ready\n")) done();
      });
    });
    const ended = new Promise((done) => child.once("close", done));
    await Promise.race([ready, ended]);
    child.stdin.write("go");
    await sleep(delayMs);
    child.kill("SIGKILL");
    await ended;
    return output.includes("done");
  }

  it("create leaves a sandbox that the next driver can use or remove", async () => {
    const before = takeInventory([bench.folder]);
    const finished: boolean[] = [];
    for (let delay = 0; delay <= 36; delay += 2) {
      const intent = bench.intent();
      finished.push(await interrupt(intent, "create", delay));
      await using next = await bench.reopen();
      if (delay % 4 === 0) {
        const started = await next.create(intent);
        await using boundary = await confine(started, intent);
        expect((await shell(boundary, started, "echo works")).stdout).toBe("works\n");
      }
      await next.delete(intent.sandboxId);
      expect(await next.list()).toEqual([]);
    }
    // The delays cover the whole call: some were cut short.
    expect(finished).toContain(false);
    await expectNoDriverLeaks(bench, { ...before, files: new Set([...before.files, join(bench.folder, "create.ts")]) });
  }, 120_000);

  it("delete leaves a sandbox that the next driver removes", async () => {
    const before = takeInventory([bench.folder]);
    for (let delay = 0; delay <= 10; delay += 1) {
      const intent = bench.intent();
      const started = await bench.driver.create(intent);
      {
        await using boundary = await confine(started, intent);
        await shell(boundary, started, "cd ~ && mkdir -p a/b/c && touch a/b/c/$(seq -s ' a/' 1 200) && chmod 000 a/b");
      }
      await interrupt(intent, "delete", delay);
      await using next = await bench.reopen();
      await next.delete(intent.sandboxId);
      expect(await next.list()).toEqual([]);
    }
    await expectNoDriverLeaks(bench, { ...before, files: new Set([...before.files, join(bench.folder, "delete.ts")]) });
  }, 120_000);
});

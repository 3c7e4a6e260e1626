import { mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Worker } from "node:worker_threads";
import { type Addon, EVENT_CLOSED, EVENT_DATA, loadAddon } from "@openshell/boundary/local/native.ts";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { nativeParts } from "../../support/boundary.ts";

let addon: Addon;
let folder: string;
beforeAll(() => {
  addon = loadAddon(nativeParts());
  folder = mkdtempSync(join(tmpdir(), "osb-addon-"));
});
afterAll(() => rmSync(folder, { recursive: true }));

describe("addon", () => {
  it("carries bytes both ways and reports the end once", async () => {
    const path = join(folder, "echo");
    const server = createServer((socket) => socket.pipe(socket));
    await new Promise<void>((resolve) => server.listen(path, resolve));
    const events: number[] = [];
    const received: Buffer[] = [];
    const done = new Promise<void>((resolve) => {
      const channel = addon.open(
        addon.connect(path),
        (event, data) => {
          events.push(event);
          if (event === EVENT_DATA) received.push(data as Buffer);
          if (Buffer.concat(received).length === 300_000) {
            // From inside its own callback, and twice.
            addon.close(channel);
            addon.close(channel);
            resolve();
          }
        },
        false,
      );
      const bytes = Buffer.alloc(300_000, "x");
      let offset = 0;
      const more = (): void => {
        offset += addon.send(channel, bytes, offset);
        if (offset < bytes.length) setTimeout(more, 1);
      };
      more();
    });
    await done;
    server.close();
    expect(events.every((event) => event === EVENT_DATA)).toBe(true);
    expect(Buffer.concat(received).equals(Buffer.alloc(300_000, "x"))).toBe(true);
  });

  it("tells when the other side has closed", async () => {
    const path = join(folder, "close");
    const server = createServer((socket) => socket.destroy());
    await new Promise<void>((resolve) => server.listen(path, resolve));
    const event = await new Promise<number>((resolve) => {
      const channel = addon.open(
        addon.connect(path),
        (kind) => {
          addon.close(channel);
          resolve(kind);
        },
        false,
      );
    });
    expect(event).toBe(EVENT_CLOSED);
    server.close();
  });

  it.each(["terminate", "throw"])("a worker thread may end with an open channel (%s)", async (how) => {
    const path = join(folder, `worker-${how}`);
    const server = createServer((socket) => {
      socket.on("error", () => {});
      const timer = setInterval(() => socket.write("x"), 1);
      socket.on("close", () => clearInterval(timer));
    });
    await new Promise<void>((resolve) => server.listen(path, resolve));
    const worker = new Worker(
      `const a = require(${JSON.stringify(join(nativeParts(), "openshell.node"))});
       globalThis.channel = a.open(a.connect(${JSON.stringify(path)}), () => {}, false);
       const { parentPort } = require("node:worker_threads");
       setTimeout(() => { if (${JSON.stringify(how)} === "throw") throw new Error("end"); parentPort.postMessage("up"); }, 50);`,
      { eval: true },
    );
    await new Promise<void>((resolve) => {
      worker.on("error", () => {});
      worker.on("message", () => void worker.terminate());
      worker.on("exit", () => resolve());
    });
    server.close();
  });

  it("locks a file for one open file at a time", () => {
    const path = join(folder, "lock");
    writeFileSync(path, "");
    const [first, second] = [openSync(path, "r"), openSync(path, "r")];
    expect(addon.lock(first)).toBe(true);
    expect(addon.lock(second)).toBe(false);
  });

  it("errors carry the kernel's number", () => {
    expect(() => addon.connect(join(folder, "nobody"))).toThrow(expect.objectContaining({ errno: -2 }) as Error);
    expect(() => addon.duplicate(9_999)).toThrow(expect.objectContaining({ errno: -9 }) as Error);
    expect(() => addon.getOption(9_999, 1, 39, 4)).toThrow();
  });

  it("hardens a process against dumps and tracing by its own user", async () => {
    const script = `require(${JSON.stringify(join(nativeParts(), "openshell.node"))}).harden();
      const text = require("fs").readFileSync("/proc/self/limits", "utf8");
      process.stdout.write(/Max core file size +0 +0/.test(text) + "");`;
    const { execFileSync } = await import("node:child_process");
    expect(execFileSync(process.execPath, ["-e", script], { encoding: "utf8" })).toBe("true");
    expect(readFileSync("/proc/self/limits", "utf8")).toContain("Max core file size");
  });
});

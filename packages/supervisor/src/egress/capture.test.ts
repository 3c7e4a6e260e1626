import { openSync } from "node:fs";
import { connect, createServer } from "node:net";
import { afterEach, expect, test } from "vitest";
import { Capture, type CaptureDeps } from "./capture.ts";
import { Fixture } from "./testing/fixture.ts";

let fixture: Fixture;

afterEach(async () => {
  await fixture[Symbol.asyncDispose]();
});

test("a connection that is gone before it was looked at leaves nothing behind", async () => {
  fixture = await Fixture.create();
  for (let i = 0; i < 50; i += 1) {
    const socket = connect(fixture.proxyPort, "127.0.0.1");
    socket.on("error", () => undefined);
    await new Promise((resolve) => socket.once("connect", resolve));
    socket.resetAndDestroy();
  }
  // The first lookup of an owner hashes its executable.
  await expect.poll(() => fixture.egress.flows, { timeout: 5_000 }).toBe(0);
  expect(fixture.egress.bufferedBytes).toBe(0);
});

test("a start for which descriptors were short is tried again, and does not stay failed", async () => {
  fixture = await Fixture.create();
  const held = createServer();
  await new Promise<void>((resolve) => held.listen(0, "127.0.0.1", resolve));
  const { fd } = (held as unknown as { readonly _handle: { readonly fd: number } })._handle;
  let short = true;
  const capture = new Capture({
    sockets: { tcp: [{ family: 4, port: 0, fd }] } as unknown as CaptureDeps["sockets"],
    tools: {
      originalDestination: () => ({ address: "192.0.2.1", port: 1 }),
      duplicate: () => {
        if (short) throw Object.assign(new Error("dup: Too many open files"), { code: "EMFILE" });
        return openSync(`/proc/self/fd/${openSync("/dev/null", "r")}`, "r");
      },
    },
    admit: () => 0,
    onFlow: () => {},
    onShed: () => {},
  } as unknown as CaptureDeps);
  await expect(capture.start()).rejects.toThrow("Too many open files");
  short = false;
  // Whatever listening on it says, the descriptor is asked for again.
  const again = await capture.start().catch((error: Error) => error.message);
  expect(String(again)).not.toContain("Too many open files");
  held.close();
});

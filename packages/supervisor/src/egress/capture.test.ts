import { connect } from "node:net";
import { afterEach, expect, test } from "vitest";
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

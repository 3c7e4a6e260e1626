import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface, type Interface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { killGroup, spawnCommand } from "../../support/command.ts";
import { data, FRAME, grpcFields, grpcMessage, headers, type Place, RawHttp2 } from "../../support/http2-frames.ts";
import { mode } from "../../support/mode.ts";
import { until } from "./caller.ts";
import type { InUse } from "./peers/ours.ts";
import { type Kind, METHOD, SERVICE } from "./protocol.ts";

/** What stays in our server's memory, to the byte: after garbage collection, unlike in a gateway under attack. */

let child: ChildProcess;
let lines: Interface;
let place: Place;

async function line<T>(): Promise<T> {
  const [text] = (await once(lines, "line")) as [string];
  return JSON.parse(text) as T;
}

async function inUse(): Promise<InUse> {
  const answer = line<InUse>();
  child.stdin!.write("{}\n");
  return answer;
}

/** As `inUse`, once every connection has gone. */
async function settled(): Promise<InUse> {
  return until("connections to close", async () => {
    const now = await inUse();
    return now.connections === 0 ? now : undefined;
  });
}

const MIB = 1024 * 1024;
/** Code that is compiled late, and caches. */
const SLACK_BYTES = 2 * MIB;
const PATH = (kind: Kind): string => `/${SERVICE}/${METHOD[kind]}`;
/** Never released. */
const HOLD = [["do-hold", "for-ever"]] as const;

/** A thousand calls that wait in their handlers, or for the rest of their message, and whose connection then breaks. */
async function abandon(kind: Kind): Promise<void> {
  using raw = await RawHttp2.open(place);
  const body = kind === "unary" ? Buffer.from([0, 0, 0]) : grpcMessage(Buffer.from([0x0a, 1, 1]));
  for (let n = 0; n < 1_000; n += 100) {
    await raw.write(
      ...Array.from({ length: 100 }, (_, m) => 2 * (n + m) + 1).flatMap((stream) => [
        headers(stream, grpcFields(PATH(kind), HOLD)),
        data(stream, body),
      ]),
    );
  }
  // What came before is with the server once it answers this.
  await raw.write(headers(2_001, grpcFields("/none")));
  await raw.wait(({ stream, type }) => stream === 2_001 || type === FRAME.goaway);
}

// Nothing here depends on who runs it.
describe.skipIf(mode === "user")("memory of our server", () => {
  beforeAll(async () => {
    const program = join(import.meta.dirname, "peers", "ours.ts");
    const config = JSON.stringify({ role: "server", address: "127.0.0.1:0" });
    child = spawnCommand([process.execPath, "--expose-gc", program, config], { stdio: ["pipe", "pipe", "inherit"] });
    lines = createInterface({ input: child.stdout! });
    const [host, port] = (await line<{ listening: string }>()).listening.split(":");
    place = { host: host!, port: Number(port) };
  });
  afterAll(() => killGroup(child));

  for (const kind of Object.keys(METHOD) as Kind[]) {
    it(`${kind}: ten thousand calls whose connection breaks leave nothing`, async () => {
      await abandon(kind);
      const before = await settled();
      for (let n = 0; n < 10; n++) await abandon(kind);
      const after = await settled();
      expect(after.heap - before.heap).toBeLessThan(SLACK_BYTES);
      expect(after.external - before.external).toBeLessThan(SLACK_BYTES);
    });
  }

  it("a million empty messages at a handler that does not read: what is kept is bounded, the rest stays with the client", async () => {
    const before = await settled();
    using raw = await RawHttp2.open(place);
    await raw.write(headers(1, grpcFields(PATH("bidi"), HOLD)));
    const many = data(1, Buffer.concat(Array.from({ length: 3_200 }, () => grpcMessage(Buffer.alloc(0)))));
    let sent = 0;
    // Beyond its window a decent client would wait; this one is told that it went too far.
    const told = () => raw.closed || raw.goaway !== undefined || raw.resetOf(1) !== undefined;
    while (sent < 1_000_000 && !told()) {
      await Promise.race([raw.write(many), sleep(1_000)]);
      sent += 3_200;
    }
    expect((await inUse()).heap - before.heap).toBeLessThan(32 * MIB);
    await until("the end of the call", () => (told() ? true : undefined));
  });
});

import { expect, test } from "vitest";
import { dripPause, FREE_PIECES, MAX_DRIP_PAUSE_MS } from "../limits.ts";
import { pipedChannel } from "../testing/pipe.ts";
import { readHead } from "./read-head.ts";

const HEAD = `GET / HTTP/1.1\r\nHost: a.example.com\r\n\r\n`;

/** Reads a head that arrives in these pieces; how long the connection was not looked at in between, each time. */
async function read(pieces: readonly string[]) {
  const { channel, feed } = pipedChannel();
  const rests: number[] = [];
  channel.rest = async (milliseconds) => void rests.push(milliseconds);
  for (const piece of pieces) feed(piece);
  return { head: (await readHead(channel, 64 * 1024, 1000, 1000))?.toString(), rests };
}

test("a head in a few pieces is read as they come", async () => {
  const { head, rests } = await read([HEAD.slice(0, 5), HEAD.slice(5, 20), HEAD.slice(20)]);
  expect(head).toBe(HEAD);
  expect(rests).toEqual([]);
});

test("a head that drips is looked at ever more rarely, up to a limit", async () => {
  const { head, rests } = await read([...HEAD]);
  expect(head).toBe(HEAD);
  expect(rests).toHaveLength(HEAD.length - FREE_PIECES);
  expect(rests.slice(0, 5)).toEqual([1, 4, 16, 64, 256]);
  expect(rests.at(-1)).toBe(MAX_DRIP_PAUSE_MS);
  expect(dripPause(100_000)).toBe(MAX_DRIP_PAUSE_MS);
});

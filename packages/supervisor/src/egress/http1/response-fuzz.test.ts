import { get } from "node:http";
import { type AddressInfo, createServer } from "node:net";
import fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import { pipedChannel } from "../testing/pipe.ts";
import { openBody } from "./body.ts";
import { findHeadEnd, HttpParseError, parseResponseHead } from "./head.ts";

/** Responses that we accept mean the same to Node's parser (llhttp), which many clients in a sandbox use. */

let wire = Buffer.alloc(0);
const server = createServer((socket) => {
  socket.on("error", () => undefined);
  socket.once("data", () => socket.end(wire));
});
beforeAll(async () => {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
});
afterAll(() => {
  server.close();
});

interface Seen {
  readonly status: number;
  readonly headers: string[];
  readonly body: string;
}

function theirs(): Promise<Seen | undefined> {
  const { port } = server.address() as AddressInfo;
  return new Promise((resolve) => {
    const asking = get({ host: "127.0.0.1", port, agent: false }, (res) => {
      let body = "";
      res.on("data", (chunk: Buffer) => {
        body += chunk.toString("latin1");
      });
      res.on("error", () => resolve(undefined));
      res.on("end", () => resolve({ status: res.statusCode!, headers: res.rawHeaders, body }));
    });
    asking.on("error", () => resolve(undefined));
    asking.setTimeout(500, () => asking.destroy());
  });
}

async function ours(bytes: Buffer): Promise<Seen | undefined> {
  const end = findHeadEnd(bytes);
  if (end === -1) return undefined;
  try {
    const head = parseResponseHead(bytes.subarray(0, end), "GET");
    const pipe = pipedChannel();
    pipe.feed(bytes.subarray(end));
    pipe.finish();
    const body = openBody(pipe.channel, head.framing);
    let text = "";
    for (;;) {
      const piece = await body.next(1_000);
      if (piece === null) break;
      text += piece.toString("latin1");
    }
    const headers = head.fields.names.flatMap((name, index) => [name, head.fields.values[index]!]);
    return { status: head.status, headers, body: text };
  } catch (error) {
    expect(error).toBeInstanceOf(HttpParseError);
    return undefined;
  }
}

const status = fc.constantFrom(
  "HTTP/1.1 200 OK",
  "HTTP/1.0 200 OK",
  "HTTP/1.1 404",
  "HTTP/1.1 204 No",
  "HTTP/1.1 304 x",
  "HTTP/1.1  200 OK",
  "HTTP/1.1 2x0 OK",
);
const field = fc.constantFrom(
  "Content-Length: 3",
  "Content-Length: 5",
  "content-length:3",
  "Content-Length: 3 ",
  "Content-Length: 03",
  "Content-Length: 3,3",
  "Transfer-Encoding: chunked",
  "transfer-encoding: Chunked",
  "Transfer-Encoding: gzip, chunked",
  "Transfer-Encoding : chunked",
  "Connection: close",
  "Connection: keep-alive",
  "X: y",
  "X:",
  "X: \x80",
  " folded",
  "Set-Cookie: a",
  "X Y: z",
  "Keep-Alive: 5",
);
const lineEnd = fc.constantFrom("\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r");
const content = fc.constantFrom(
  "abc",
  "abcde",
  "",
  "3\r\nabc\r\n0\r\n\r\n",
  "3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nA: b\r\n\r\n",
  "3\r\nabcd\r\n0\r\n\r\n",
  "0\r\n\r\n",
  "3\nabc\n0\n\n",
);

test("a response that both accept is one and the same", { timeout: 60_000 }, async () => {
  let compared = 0;
  await fc.assert(
    fc.asyncProperty(
      status,
      fc.array(fc.tuple(field, lineEnd), { maxLength: 4 }),
      content,
      async (line, fields, body) => {
        wire = Buffer.from(`${line}\r\n${fields.map(([text, end]) => text + end).join("")}\r\n${body}`, "latin1");
        const mine = await ours(wire);
        if (mine === undefined) return;
        const other = await theirs();
        // llhttp refuses what follows a complete message; the pool ends such connections instead.
        if (other === undefined) return;
        compared += 1;
        expect(mine).toEqual(other);
      },
    ),
    { numRuns: 600, seed: 20260802 },
  );
  expect(compared).toBeGreaterThan(60);
});

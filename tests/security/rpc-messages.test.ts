import { setTimeout as sleep } from "node:timers/promises";
import { gzipSync } from "node:zlib";
import { beforeAll, expect } from "vitest";
import { attack, openLab } from "../support/attack.ts";
import { GrpcBytes, type RawCall } from "../support/grpc-bytes.ts";
import {
  data,
  FRAME,
  grpcFields,
  grpcMessage,
  headers,
  type Place,
  PREFACE,
  ping,
  type RawFields,
  RawHttp2,
  settings,
  windowUpdate,
} from "../support/http2-frames.ts";
import { memoryStaysFlat, type Targets, targetsOf, whileServing } from "../support/rpc-attack.ts";

/** gRPC messages and headers, at the gateway's socket and port: framing, compression, deadlines. */

const lab = openLab();
let targets: Targets;
beforeAll(async () => {
  targets = await targetsOf(lab.gateway);
});

const LIST = "/openshell.v1.OpenShell/ListSandboxes";
const EXEC = "/openshell.v1.OpenShell/ExecSandbox";
const INTERACTIVE = "/openshell.v1.OpenShell/ExecSandboxInteractive";
const HEALTH = "/grpc.health.v1.Health/Check";
const REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
const MIB = 1024 * 1024;
const LIMIT = 4 * MIB;
const EMPTY = grpcMessage(Buffer.alloc(0));
const _SCOPE = { selection: { case: "workspace", value: "default" } } as const;

/** gRPC's status numbers. */
const OK = 0;
const INVALID_ARGUMENT = 3;
const DEADLINE_EXCEEDED = 4;
const RESOURCE_EXHAUSTED = 8;
const UNIMPLEMENTED = 12;
const INTERNAL = 13;
const _UNAUTHENTICATED = 16;

interface Case extends Omit<RawCall, "path"> {
  readonly name: string;
  readonly path?: string;
  readonly codes: readonly number[];
}

/** Each is answered with one of its codes, and the next call on the same connection works. */
async function expectCodes(place: Place, cases: readonly Case[]): Promise<void> {
  using grpc = new GrpcBytes(place);
  for (const { name, codes, path = HEALTH, ...call } of cases) {
    const answer = await grpc.call({ path, ...call });
    expect({ name, allowed: codes.includes(answer.code ?? -1), ...answer }).toMatchObject({ allowed: true });
    const next = await grpc.call({ path: HEALTH, body: [EMPTY] });
    expect({ name, code: next.code }).toEqual({ name, code: OK });
  }
}

async function eachCaller(run: (place: Place) => Promise<void>): Promise<void> {
  for (const who of ["owner", "anybody"] as const) await run(targets[who]);
}

attack(
  "broken messages: unknown flags, lengths beyond the limit, the end within a prefix or a message, too many or none",
  "each call ends with its code at once, whatever was announced; the connection goes on",
  { root: "INTERNAL", user: "as root" },
  async ({ gateway }) => {
    const cases: readonly Case[] = [
      ...[2, 0x80, 0xff].map((flags) => ({
        name: `flags ${flags}`,
        body: [grpcMessage(Buffer.alloc(0), flags)],
        codes: [INTERNAL],
      })),
      {
        name: "4 GiB announced",
        body: [grpcMessage(Buffer.alloc(10), 0, 0xffff_ffff)],
        end: false,
        codes: [RESOURCE_EXHAUSTED],
      },
      {
        name: "a byte too many announced",
        body: [grpcMessage(Buffer.alloc(0), 0, LIMIT + 1)],
        end: false,
        codes: [RESOURCE_EXHAUSTED],
      },
      { name: "the end within a prefix", body: [Buffer.from([0, 0, 0])], codes: [INTERNAL] },
      { name: "the end within a message", body: [grpcMessage(Buffer.alloc(10), 0, 11)], codes: [INTERNAL] },
      { name: "no message", body: [], codes: [UNIMPLEMENTED, INVALID_ARGUMENT, INTERNAL] },
      { name: "two messages", body: [EMPTY, EMPTY], codes: [UNIMPLEMENTED, INVALID_ARGUMENT, INTERNAL] },
      {
        name: "bytes that are no protobuf",
        body: [grpcMessage(Buffer.from([0x0a, 0xff, 0xff]))],
        codes: [INVALID_ARGUMENT, INTERNAL],
      },
      {
        name: "text that is no UTF-8",
        body: [grpcMessage(Buffer.from([0x0a, 2, 0xc3, 0x28]))],
        codes: [INVALID_ARGUMENT, INTERNAL],
      },
    ];
    await whileServing(gateway, () => eachCaller((place) => expectCodes(place, cases)));
  },
);

attack(
  "compression: unannounced, unknown, garbage, cut off, and bombs that inflate beyond the limit",
  "nothing is inflated beyond 4 MiB; unknown encodings are UNIMPLEMENTED and told which there are",
  { root: "RESOURCE_EXHAUSTED", user: "as root" },
  async ({ gateway }) => {
    const gzip = { "grpc-encoding": "gzip" };
    // 64 MiB of zeros in 64 KiB, and the same as several members.
    const bomb = gzipSync(Buffer.alloc(64 * MIB));
    const members = Buffer.concat([bomb, bomb, bomb]);
    const cases: readonly Case[] = [
      { name: "unannounced", body: [grpcMessage(gzipSync(Buffer.alloc(0)), 1)], codes: [INTERNAL] },
      {
        name: "garbage",
        headers: gzip,
        body: [grpcMessage(Buffer.from("garbage"), 1)],
        codes: [INVALID_ARGUMENT, INTERNAL],
      },
      {
        name: "cut off",
        headers: gzip,
        body: [grpcMessage(gzipSync(Buffer.alloc(1_000)).subarray(0, 15), 1)],
        codes: [INVALID_ARGUMENT, INTERNAL],
      },
      {
        name: "a byte too many",
        path: LIST,
        headers: gzip,
        body: [grpcMessage(gzipSync(Buffer.alloc(LIMIT + 1)), 1)],
        codes: [RESOURCE_EXHAUSTED],
      },
      { name: "a bomb", path: LIST, headers: gzip, body: [grpcMessage(bomb, 1)], codes: [RESOURCE_EXHAUSTED] },
      {
        name: "a bomb of many members",
        path: LIST,
        headers: gzip,
        body: [grpcMessage(members, 1)],
        codes: [RESOURCE_EXHAUSTED],
      },
    ];
    await memoryStaysFlat(
      gateway,
      async () => {
        await eachCaller((place) => expectCodes(place, cases));
        // Many at once: each may have its 4 MiB, and no more.
        using grpc = new GrpcBytes(targets.owner);
        const call: RawCall = { path: LIST, headers: gzip, body: [grpcMessage(bomb, 1)] };
        const answers = await Promise.all(Array.from({ length: 60 }, () => grpc.call(call)));
        expect(answers.filter(({ code }) => code !== RESOURCE_EXHAUSTED)).toEqual([]);
      },
      { rounds: 2 },
    );
    using grpc = new GrpcBytes(targets.owner);
    for (const encoding of ["deflate", "snappy", "br", "x".repeat(500)]) {
      const { code, headers: got } = await grpc.call({
        path: HEALTH,
        headers: { "grpc-encoding": encoding },
        body: [EMPTY],
      });
      expect([encoding.slice(0, 8), code, got["grpc-accept-encoding"]]).toEqual([
        encoding.slice(0, 8),
        UNIMPLEMENTED,
        expect.stringContaining("gzip"),
      ]);
    }
  },
  60_000,
);

attack(
  "requests that are not quite gRPC: other content types, methods, paths, te, and deadlines that are no numbers",
  "an HTTP error or a gRPC code says what is wrong; no method runs",
  { root: "refused", user: "as root" },
  async ({ gateway }) => {
    await whileServing(gateway, () =>
      eachCaller(async (place) => {
        using grpc = new GrpcBytes(place);
        const ask = (path: string, fields: RawCall["headers"] = {}) =>
          grpc.call({ path, headers: fields, body: [EMPTY] });
        for (const type of [
          "application/grpc+xml",
          "application/grpcx",
          "text/plain",
          "",
          undefined,
          "application/grpc+",
        ]) {
          const { status, code } = await ask(HEALTH, { "content-type": type });
          expect([type, status >= 400 || (code !== undefined && code !== OK)]).toEqual([type, true]);
        }
        for (const method of ["GET", "PUT", "DELETE", "OPTIONS", "FOO"]) {
          const { status } = await ask(HEALTH, { ":method": method });
          expect([method, status]).toEqual([method, 405]);
        }
        for (const path of [
          "/",
          "/a",
          "//",
          "/openshell.v1.OpenShell/",
          "/openshell.v1.OpenShell/List",
          `${HEALTH}/`,
          `${HEALTH}?x`,
          "/../x",
        ]) {
          const { status, code } = await ask(path);
          expect([path, status >= 400 || code === UNIMPLEMENTED]).toEqual([path, true]);
        }
        for (const path of ["/__proto__/x", "/constructor", "/toString", `/${"a".repeat(10_000)}`]) {
          const { code, message } = await ask(path);
          expect([path.slice(0, 20), code, message.length < 1_000]).toEqual([path.slice(0, 20), UNIMPLEMENTED, true]);
        }
        for (const timeout of ["", "1", "S", "-1S", "1.5S", "1x", "123456789S", "1 S", "0x1S", "NaNm", "1SS"]) {
          const { code } = await ask(HEALTH, { "grpc-timeout": timeout });
          expect([timeout, code === INVALID_ARGUMENT || code === INTERNAL]).toEqual([timeout, true]);
        }
        for (const timeout of ["99999999H", "99999999S", "1H"])
          expect((await ask(HEALTH, { "grpc-timeout": timeout })).code).toBe(OK);
        const late = await grpc.call({ path: HEALTH, headers: { "grpc-timeout": "0n" }, body: [EMPTY] });
        // A deadline of now: whichever is faster.
        expect([OK, DEADLINE_EXCEEDED]).toContain(late.code);
      }),
    );
  },
  60_000,
);

attack(
  "messages that are announced and never come, a thousand at once, with and without a deadline",
  "those with a deadline end there; whoever proved nothing may have little of it, and memory stays bounded",
  { root: "DEADLINE_EXCEEDED", user: "as root" },
  async ({ gateway }) => {
    const almost = grpcMessage(Buffer.alloc(LIMIT - 1), 0, LIMIT);
    await memoryStaysFlat(
      gateway,
      async () => {
        using owner = new GrpcBytes(targets.owner);
        const body = [grpcMessage(Buffer.alloc(1_000), 0, LIMIT)];
        const calls = Array.from({ length: 500 }, () =>
          owner.call({ path: LIST, headers: { "grpc-timeout": "500m" }, body, end: false }),
        );
        const codes = (await Promise.all(calls)).map(({ code }) => code);
        expect(codes.filter((code) => code !== DEADLINE_EXCEEDED)).toEqual([]);
        // 128 calls of nearly 4 MiB: half a GiB, if anybody could.
        const strangers = Array.from({ length: 8 }, () => new GrpcBytes(targets.anybody));
        try {
          const path = [LIST, HEALTH, REFLECTION];
          const answers = strangers.flatMap((stranger) =>
            Array.from({ length: 16 }, (_, n) =>
              stranger.call({ path: path[n % 3]!, body: [almost], end: false, timeoutMs: 10_000 }),
            ),
          );
          const others = (await Promise.all(answers)).filter(({ code }) => code !== RESOURCE_EXHAUSTED);
          expect(others).toEqual([]);
        } finally {
          for (const stranger of strangers) stranger[Symbol.dispose]();
        }
      },
      { rounds: 2 },
    );
  },
  60_000,
);

attack(
  "empty messages, hundreds of thousands of them, at every kind of method",
  "the call ends or the caller is held back; memory stays flat",
  { root: "ended", user: "as root" },
  async ({ gateway }) => {
    await memoryStaysFlat(
      gateway,
      async () => {
        for (const path of [LIST, EXEC, INTERACTIVE, REFLECTION]) {
          using raw = await RawHttp2.open(targets.owner);
          await raw.write(headers(1, grpcFields(path)));
          const many = data(1, Buffer.concat(Array.from({ length: 3_200 }, () => EMPTY)));
          for (let n = 0; n < 60 && !raw.closed && !raw.endOf(1); n++) {
            await Promise.race([raw.write(many), sleep(200)]);
          }
        }
      },
      { rounds: 2 },
    );
  },
  60_000,
);

attack(
  "a body without end for a method that does not exist, and for one that has already answered",
  "the call is reset: nobody has to take what nobody reads",
  { root: "reset", user: "as root" },
  async ({ gateway }) => {
    await whileServing(gateway, () =>
      eachCaller(async (place) => {
        for (const [path, fields] of [
          ["/openshell.v1.OpenShell/Nothing", grpcFields("/openshell.v1.OpenShell/Nothing")],
          [
            "a refused type",
            grpcFields(HEALTH).map(
              ([name, value]) => [name, name === "content-type" ? "application/grpc+xml" : value] as const,
            ),
          ],
          [LIST, grpcFields(LIST, [["grpc-encoding", "nothing"]])],
        ] as const) {
          using raw = await RawHttp2.open(place);
          await raw.write(headers(1, fields));
          await raw.wait(() => raw.endOf(1));
          const part = data(1, Buffer.alloc(16_000));
          for (let n = 0; n < 500 && raw.resetOf(1) === undefined && !raw.closed; n++) {
            await Promise.race([raw.write(part), sleep(50)]);
          }
          await raw.wait(({ type, stream }) => type === FRAME.reset && stream === 1);
          expect([path, raw.resetOf(1)]).toEqual([path, 0]);
        }
      }),
    );
  },
  60_000,
);

/** Numbers below 1 that follow from the seed (mulberry32). */
function randomOf(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** A decent conversation with a few things wrong: bytes flipped, frames doubled, dropped, cut, in another order. */
function garbled(seed: number): Buffer {
  const random = randomOf(seed);
  const below = (limit: number) => Math.floor(random() * limit);
  const paths = [LIST, EXEC, INTERACTIVE, REFLECTION, HEALTH];
  const frames: Buffer[] = [settings()];
  for (let n = 0; n < 6; n++) {
    const stream = 2 * n + 1;
    const more: RawFields = n % 2 === 0 ? [["grpc-encoding", "gzip"]] : [["grpc-timeout", "100m"]];
    frames.push(headers(stream, grpcFields(paths[below(paths.length)]!, more)));
    const zipped = grpcMessage(gzipSync(Buffer.from([0x0a, 2, 0x0a, 0])), 1);
    frames.push(data(stream, n % 2 === 0 ? zipped : EMPTY, below(2)), windowUpdate(stream, 1 + below(1_000)), ping());
  }
  for (let wrong = 1 + below(4); wrong > 0; wrong--) {
    const at = below(frames.length);
    const one = frames[at]!;
    const how = below(5);
    if (how === 0) one[below(one.length)]! ^= 1 << below(8);
    else if (how === 1) frames.splice(at, 0, one);
    else if (how === 2) frames.splice(at, 1);
    else if (how === 3) frames[at] = one.subarray(0, below(one.length));
    else frames.push(...frames.splice(at, 1));
  }
  return Buffer.concat([PREFACE, ...frames]);
}

attack(
  "six hundred conversations with a few things wrong in each: bits, order, frames doubled, missing or cut",
  "each connection ends or works; the gateway goes on, and nothing unexpected is in its log",
  { root: "ended or works", user: "as root" },
  async ({ gateway }) => {
    await memoryStaysFlat(
      gateway,
      async () => {
        for (let seed = 1; seed <= 600; seed += 30) {
          const all = await Promise.all(
            Array.from({ length: 30 }, async (_, n) => {
              const raw = await RawHttp2.open(targets.owner, { silent: true });
              await raw.write(garbled(seed + n));
              return raw;
            }),
          );
          // One round trip of a decent caller: what came before has been read.
          using grpc = new GrpcBytes(targets.owner);
          expect((await grpc.call({ path: HEALTH, body: [EMPTY] })).code, `after seed ${seed}`).toBe(OK);
          for (const raw of all) raw[Symbol.dispose]();
        }
      },
      { rounds: 1 },
    );
  },
  60_000,
);

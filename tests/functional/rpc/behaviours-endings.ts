import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { anyPack } from "@bufbuild/protobuf/wkt";
import { decodeBinaryHeader } from "@connectrpc/connect";
import {
  BadRequestSchema,
  ErrorInfoSchema,
  RetryInfoSchema,
} from "@openshell/api/generated/google/rpc/error_details_pb.js";
import { StatusSchema } from "@openshell/api/generated/google/rpc/status_pb.js";
import { expect } from "vitest";
import { type Behaviour, CANCELLED, DEADLINE_EXCEEDED, KINDS, LONG_MS, newTag, OK, TEXT, utf8 } from "./behaviour.ts";
import { until, valuesOf } from "./caller.ts";
import type { MetadataList } from "./protocol.ts";

/** How calls end: errors, deadlines, cancellation, either side first. */

/** A status with three kinds of details, as api errors carry them. */
function richStatus(code: number, message: string) {
  const violation = { field: "spec.name", description: "zu lang: 価格 %41" };
  return create(StatusSchema, {
    code,
    message,
    details: [
      anyPack(
        ErrorInfoSchema,
        create(ErrorInfoSchema, { reason: "WRONG", domain: "openshell.nvidia.com", metadata: { kind: "sandbox" } }),
      ),
      anyPack(BadRequestSchema, create(BadRequestSchema, { fieldViolations: [violation] })),
      anyPack(RetryInfoSchema, create(RetryInfoSchema, { retryDelay: { seconds: 2n, nanos: 5 } })),
    ],
  });
}

const errors: readonly Behaviour[] = [
  {
    name: "every code from 1 to 16 arrives as it is",
    run: async ({ caller }) => {
      for (let code = 1; code <= 16; code++) {
        const told: MetadataList = [
          ["do-fail", String(code)],
          ["do-message-bin", utf8(`number ${code}`)],
        ];
        const ended = await caller.unary(1, 0, { metadata: told });
        expect([ended.code, ended.message]).toEqual([code, `number ${code}`]);
      }
    },
  },
  ...KINDS.map(
    (kind): Behaviour => ({
      name: `${kind}: an error's text with non-ASCII letters, percent signs, quotes and a line break arrives as it is`,
      run: async ({ caller }) => {
        const told: MetadataList = [
          ["do-fail", "5"],
          ["do-message-bin", utf8(TEXT)],
        ];
        const call = caller.start(kind, { metadata: told }).send(1);
        const { code, message } = await call.ended();
        expect([code, message]).toEqual([5, TEXT]);
      },
    }),
  ),
  {
    name: "status details: code and message equal the transport's, and every detail arrives byte for byte",
    run: async ({ caller }) => {
      const status = richStatus(3, TEXT);
      const told: MetadataList = [
        ["do-fail", "3"],
        ["do-message-bin", utf8(TEXT)],
        ["do-details-bin", Buffer.from(toBinary(StatusSchema, status)).toString("base64")],
      ];
      const { code, message, trailers } = await caller.unary(1, 0, { metadata: told });
      const [encoded] = valuesOf(trailers, "grpc-status-details-bin");
      const got = fromBinary(StatusSchema, decodeBinaryHeader(encoded!));
      expect([code, message]).toEqual([3, TEXT]);
      expect([got.code, got.message]).toEqual([code, message]);
      expect(got.details).toEqual(status.details);
    },
  },
  ...(["server", "bidi"] as const).map(
    (kind): Behaviour => ({
      name: `${kind}: an error after three messages comes after all three`,
      run: async ({ caller }) => {
        const told: MetadataList = [
          ["do-fail", "10"],
          ["do-fail-after", "3"],
          ["do-count", "9"],
          ["do-size", "50000"],
        ];
        const call = caller.start(kind, { metadata: told });
        if (kind === "server") call.send(0);
        else {
          call.send(50_000, 0, 3);
          await call.message(3);
          call.send(1);
        }
        const { code, messages } = await call.ended();
        expect([code, messages.length]).toEqual([10, 3]);
      },
    }),
  ),
];

const endings: readonly Behaviour[] = [
  ...KINDS.map(
    (kind): Behaviour => ({
      name: `${kind}: a deadline shorter than the work: the client gets DEADLINE_EXCEEDED, the handler knew it and is told`,
      run: async ({ caller }) => {
        const tag = newTag();
        const told: MetadataList = [
          ["do-tag", tag],
          ["do-hold", newTag()],
        ];
        const { code } = await caller.start(kind, { metadata: told, deadlineMs: 400 }).send(1).ended();
        expect(code).toBe(DEADLINE_EXCEEDED);
        const report = await caller.reported(tag, "cancelled", ({ cancelled }) => cancelled);
        expect(report.deadlineMs).toBeGreaterThan(0);
        // Clients round up, to whole milliseconds or more.
        expect(report.deadlineMs).toBeLessThanOrEqual(410);
      },
    }),
  ),
  {
    name: "a deadline that is long enough harms nobody, and without one the handler sees none",
    run: async ({ caller }) => {
      const tag = newTag();
      expect((await caller.unary(1, 0, { deadlineMs: LONG_MS, metadata: [["do-tag", tag]] })).code).toBe(OK);
      const { deadlineMs, cancelled } = await caller.report(tag);
      expect(cancelled).toBe(false);
      expect(deadlineMs).toBeGreaterThan(LONG_MS / 2);
      // Clients round up.
      expect(deadlineMs).toBeLessThanOrEqual(LONG_MS * 1.01);
      const other = newTag();
      await caller.unary(1, 0, { metadata: [["do-tag", other]] });
      expect((await caller.report(other)).deadlineMs).toBeNull();
    },
  },
  ...KINDS.map(
    (kind): Behaviour => ({
      name: `${kind}: the client cancels: CANCELLED there, and the handler is told`,
      run: async ({ caller }) => {
        const tag = newTag();
        const told: MetadataList = [
          ["do-tag", tag],
          ["do-hold", newTag()],
        ];
        const call = caller.start(kind, { metadata: told }).send(1);
        await caller.reported(tag, "started", ({ started }) => started);
        call.cancel();
        expect((await call.ended()).code).toBe(CANCELLED);
        await caller.reported(tag, "cancelled", ({ cancelled }) => cancelled);
      },
    }),
  ),
  {
    name: "bidi: the client cancels in the middle of a flow: the handler is told, and the connection lives",
    run: async ({ caller }) => {
      const tag = newTag();
      const call = caller.start("bidi", { metadata: [["do-tag", tag]], reads: 1 }).send(16_384, 0, 1_000);
      await call.message(1);
      call.cancel();
      expect((await call.ended()).code).toBe(CANCELLED);
      await caller.reported(tag, "cancelled", ({ cancelled }) => cancelled);
      expect((await caller.unary(10)).code).toBe(OK);
    },
  },
  ...(["client", "bidi"] as const).flatMap((kind): Behaviour[] => [
    {
      name: `${kind}: the server ends well before the client has half-closed: its answers and OK arrive`,
      run: async ({ caller }) => {
        const [tag, gate] = [newTag(), newTag()];
        const told: MetadataList = [
          ["do-tag", tag],
          ["do-hold", gate],
          ["do-end-after", "3"],
        ];
        const call = caller.start(kind, { metadata: told }).send(10_000, 0, 4);
        await until("messages sent", () => (call.sent === 4 ? true : undefined));
        await caller.release(gate);
        const { code, messages } = await call.ended();
        expect([code, messages.length]).toEqual([OK, kind === "client" ? 1 : 3]);
        expect(await caller.report(tag)).toMatchObject({ received: 3, done: true, cancelled: false });
      },
    },
    {
      name: `${kind}: the server ends well in the middle of the client's flood: its answers and OK arrive`,
      cannot: {
        "calls us": {
          "grpc-python": "a write of grpc.aio that meets the end of the call makes it INTERNAL, whatever it was",
        },
      },
      run: async ({ caller }) => {
        const told: MetadataList = [["do-end-after", "3"]];
        const call = caller.start(kind, { metadata: told }).send(10_000, 0, 200);
        const { code, messages } = await call.ended();
        expect([code, messages.length]).toEqual([OK, kind === "client" ? 1 : 3]);
        expect((await caller.unary(10)).code).toBe(OK);
      },
    },
  ]),
];

export const ENDINGS: readonly Behaviour[] = [...errors, ...endings];

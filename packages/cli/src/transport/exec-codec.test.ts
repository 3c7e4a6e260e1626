import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { ExecSandboxEventSchema, ExecSandboxInputSchema } from "@openshell/api/generated/openshell_pb.js";
import fc from "fast-check";
import { expect, test } from "vitest";
import { decodeEvent, encodeResize, encodeStart, encodeStdin } from "./exec-codec.ts";

const text = fc.string({ unit: "grapheme" });

test("a start says the same to protobuf-es", () => {
  const start = fc.record({
    workspace: text,
    sandbox: text,
    command: fc.array(text),
    workdir: text,
    environment: fc.dictionary(text, text),
    tty: fc.boolean(),
    cols: fc.nat(0xffff_ffff),
    rows: fc.nat(0xffff_ffff),
    noLoginShell: fc.boolean(),
    timeoutSeconds: fc.nat(),
  });
  fc.assert(
    fc.property(start, (given) => {
      const { payload } = fromBinary(ExecSandboxInputSchema, encodeStart(given));
      if (payload.case !== "start") throw new Error(`case ${payload.case}`);
      const read = payload.value;
      expect({
        workspace: read.workspaceScope?.selection.value,
        sandbox: read.sandbox,
        command: read.command,
        workdir: read.workdir,
        environment: read.environment,
        tty: read.tty,
        cols: read.cols,
        rows: read.rows,
        noLoginShell: read.noLoginShell,
        timeoutSeconds: Number(read.executionTimeout?.seconds ?? 0n),
      }).toEqual(given);
      expect(read.workspaceScope?.selection.case).toBe("workspace");
      expect(read.$unknown).toBeUndefined();
    }),
  );
});

test("input and window sizes say the same to protobuf-es", () => {
  fc.assert(
    fc.property(fc.uint8Array(), fc.nat(0xffff_ffff), fc.nat(0xffff_ffff), (data, cols, rows) => {
      const stdin = fromBinary(ExecSandboxInputSchema, encodeStdin(data));
      expect(stdin.payload).toEqual({ case: "stdin", value: data });
      const resize = fromBinary(ExecSandboxInputSchema, encodeResize(cols, rows)).payload;
      if (resize.case !== "resize") throw new Error(`case ${resize.case}`);
      expect(resize.value).toMatchObject({ cols, rows });
    }),
  );
});

test("events of protobuf-es are read", () => {
  fc.assert(
    fc.property(fc.uint8Array(), fc.nat(255), (data, code) => {
      for (const kind of ["stdout", "stderr"] as const) {
        const bytes = toBinary(
          ExecSandboxEventSchema,
          create(ExecSandboxEventSchema, { payload: { case: kind, value: { data } } }),
        );
        const event = decodeEvent(bytes);
        expect(event?.kind).toBe(kind);
        expect(event?.kind === kind && Buffer.from(event.data).equals(data)).toBe(true);
      }
      const exit = create(ExecSandboxEventSchema, { payload: { case: "exit", value: { exitCode: code } } });
      expect(decodeEvent(toBinary(ExecSandboxEventSchema, exit))).toEqual({ kind: "exit", code });
    }),
  );
});

test("an unknown event is no event, malformed bytes are an error", () => {
  expect(decodeEvent(new Uint8Array())).toBeUndefined();
  expect(decodeEvent(Uint8Array.of(0x7a, 0x01, 0x00))).toBeUndefined();
  expect(() => decodeEvent(Uint8Array.of(0x0a, 0x05, 0x00))).toThrow(RangeError);
  expect(() => decodeEvent(new Uint8Array(12).fill(0xff))).toThrow(RangeError);
});

import { fromBinary } from "@bufbuild/protobuf";
import { type ExecSandboxEvent, ExecSandboxEventSchema } from "@openshell/api";
import { RelayUplinkSchema } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { describe, expect, it } from "vitest";
import { exitUplink, outputUplink } from "./event-bytes.ts";

function eventOf(uplink: Uint8Array): ExecSandboxEvent {
  const { message, $unknown } = fromBinary(RelayUplinkSchema, uplink);
  if (message.case !== "execEvent" || $unknown !== undefined) throw new Error(`no event: ${message.case}`);
  return fromBinary(ExecSandboxEventSchema, message.value);
}

describe("exec events in wire form", () => {
  it.each([0, 1, 127, 128, 16_384, 65_536])("decodes output of %i bytes", (size) => {
    const data = new Uint8Array(size).map((_, index) => index & 0xff);
    for (const stream of ["stdout", "stderr"] as const) {
      const event = eventOf(outputUplink(stream, data));
      expect(event.payload.case).toBe(stream);
      expect(event.payload.case === stream && Buffer.compare(event.payload.value.data, data)).toBe(0);
    }
  });
  it.each([0, 1, 127, 128, 137, 255])("decodes exit code %i", (code) => {
    const event = eventOf(exitUplink(code));
    expect(event.payload).toMatchObject({ case: "exit", value: { exitCode: code } });
  });
});

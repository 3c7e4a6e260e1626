import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import {
  ListSandboxesResponseSchema,
  SandboxPhase,
  SandboxResponseSchema,
  SandboxSpecSchema,
  SandboxStatusSchema,
} from "@openshell/api";
import { encodedBytes } from "@openshell/rpc";
import { describe, expect, it } from "vitest";
import type { SandboxRecord } from "../store/types.ts";
import { sandboxMessage } from "./convert.ts";
import { encodedSandbox, encodedSandboxes, encodedSandboxResponse } from "./encoded-sandbox.ts";

const record = (name: string): SandboxRecord => ({
  id: `id of ${name}`,
  name,
  workspace: "default",
  labels: { team: "a" },
  annotations: { note: "x".repeat(300) },
  createdAt: 1_700_000_000_123,
  deletionAt: undefined,
  resourceVersion: 3n,
  spec: create(SandboxSpecSchema, { command: ["sleep", "9"], environment: { A: "1" } }),
  status: create(SandboxStatusSchema, { phase: SandboxPhase.READY, conditions: [{ type: "Ready" }] }),
  hostKeyFingerprint: "SHA256:abc",
  workloadTemplate: { name: "t", resourceVersion: "9" },
  generation: 1n,
  driver: "local",
  driverRecord: null,
  runtimeRecord: null,
});

describe("an encoded sandbox", () => {
  it("is what encoding its message gives", () => {
    const box = record("box");
    const message = create(SandboxResponseSchema, { sandbox: sandboxMessage(box) });
    expect(Buffer.from(encodedBytes(encodedSandboxResponse(box))!)).toEqual(
      Buffer.from(toBinary(SandboxResponseSchema, message)),
    );
  });

  it("makes a page together with others, as encoding the page gives", () => {
    const boxes = ["one", "two", "three"].map(record);
    for (const nextPageToken of ["", "more"]) {
      const page = encodedBytes(encodedSandboxes(boxes.map(encodedSandbox), nextPageToken))!;
      const message = create(ListSandboxesResponseSchema, { sandboxes: boxes.map(sandboxMessage), nextPageToken });
      expect(Buffer.from(page)).toEqual(Buffer.from(toBinary(ListSandboxesResponseSchema, message)));
    }
    const none = encodedBytes(encodedSandboxes([], ""))!;
    expect(fromBinary(ListSandboxesResponseSchema, none)).toEqual(create(ListSandboxesResponseSchema));
  });

  it("is kept for a record that cannot change, and made anew for one that can", () => {
    const frozen = Object.freeze(record("frozen"));
    expect(encodedSandbox(frozen)).toBe(encodedSandbox(frozen));
    const open: { -readonly [Key in keyof SandboxRecord]: SandboxRecord[Key] } = record("open");
    const before = encodedSandbox(open);
    open.hostKeyFingerprint = "SHA256:other";
    expect(Buffer.from(encodedSandbox(open))).not.toEqual(Buffer.from(before));
  });
});

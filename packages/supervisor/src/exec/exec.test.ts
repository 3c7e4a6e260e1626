import { setTimeout as sleep } from "node:timers/promises";
import { create, fromBinary } from "@bufbuild/protobuf";
import { ExecSandboxEventSchema } from "@openshell/api";
import type { RelayDownlink } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import {
  AttachStartSchema,
  ExecStartSchema,
  RelayUplinkSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { type Clock, systemClock } from "@openshell/base";
import { encodedBytes } from "@openshell/rpc";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { FakeBoundary } from "../testing/fake-boundary.ts";
import { runExec } from "./exec.ts";
import { MainProcess } from "./main-process.ts";
import { RelayChannel } from "./relay.ts";

/** Half a minute passes in 30 ms. */
const hasty: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now() * 1_000,
  sleep: (ms, options) => systemClock.sleep(ms / 1_000, options),
};
/** More frames than the relay's queue holds; what is left waits in the pipe, so the command ends before it is read. */
const LINES = 40;
const WRITE = `i=0; while [ $i -lt ${LINES} ]; do echo; i=$((i+1)); sleep 0.005; done`;
const silent: AsyncIterator<RelayDownlink> = { next: () => new Promise(() => {}) };

async function read(channel: RelayChannel): Promise<{ bytes: number; exit: number | undefined; failure: string }> {
  const seen = { bytes: 0, exit: undefined as number | undefined, failure: "" };
  for await (const sent of channel.uplink) {
    const encoded = encodedBytes(sent);
    const { message } = encoded === undefined ? sent : fromBinary(RelayUplinkSchema, encoded);
    if (message.case === "failure") seen.failure = message.value.code;
    if (message.case !== "execEvent") continue;
    const { payload } = fromBinary(ExecSandboxEventSchema, message.value);
    if (payload.case === "stdout") seen.bytes += payload.value.data.length;
    if (payload.case === "exit") seen.exit = payload.value.exitCode;
  }
  return seen;
}

describe("output of a command that has ended", () => {
  let boundary: FakeBoundary;
  beforeEach(() => {
    boundary = new FakeBoundary();
  });
  afterEach(() => boundary.terminate());
  const exec = (script: string, channel: RelayChannel) =>
    runExec(
      {
        boundary,
        clock: hasty,
        environment: () => ({ PATH: "/usr/bin:/bin" }),
        workingDirectory: "/tmp",
        shell: "/bin/sh",
      },
      create(ExecStartSchema, { command: ["/bin/sh", "-c", script], noLoginShell: true }),
      silent,
      channel,
    );

  it("waits for a caller who reads slowly", async () => {
    const channel = new RelayChannel("r", "s");
    const done = exec(WRITE, channel);
    await sleep(800);
    expect(await read(channel)).toEqual({ bytes: LINES, exit: 0, failure: "" });
    await done;
  });

  it("is given up when another process holds it open, and its streams are closed", async () => {
    const channel = new RelayChannel("r", "s");
    const spawn = vi.spyOn(boundary, "spawn");
    void read(channel);
    await expect(exec("setsid sleep 60 & exit 0", channel)).rejects.toMatchObject({ code: "output_held_open" });
    const process = await spawn.mock.results[0]!.value;
    expect(process.stdout.destroyed && process.stdin.destroyed).toBe(true);
  });

  it("waits for a slow attachment of the main process", async () => {
    const process = await boundary.spawn({
      argv: ["/bin/sh", "-c", WRITE],
      env: { PATH: "/usr/bin:/bin" },
      cwd: "/tmp",
      stdio: { kind: "pipes" },
    });
    const main = new MainProcess(process, hasty, false);
    const channel = new RelayChannel("r", "s");
    const attached = main.attach(create(AttachStartSchema), silent, channel);
    await sleep(800);
    expect(await read(channel)).toEqual({ bytes: LINES, exit: 0, failure: "" });
    await attached;
  });
});

import type { ExecStart, RelayDownlink } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { type Clock, RuntimeError } from "@openshell/base";
import type { Boundary, ExitStatus, SandboxProcess } from "@openshell/boundary";
import { Limits } from "../limits.ts";
import { commandLine, shellCode } from "./command.ts";
import { exitUplink, outputUplink } from "./event-bytes.ts";
import { HeldOutput } from "./held-output.ts";
import type { RelayChannel } from "./relay.ts";
import { describeFolderFailure, startFailure } from "./start-failure.ts";
import { StdinWriter } from "./stdin.ts";

const SIGTERM = 15;
const SIGKILL = 9;
/** What timeout(1) and the reference report. */
const TIMEOUT_CODE = 124;

export interface ExecContext {
  readonly boundary: Boundary;
  readonly clock: Clock;
  /** Complete environment of a new process: base, proxy, certificates, placeholders, then `extra`. */
  environment(extra: Readonly<Record<string, string>>, tty: boolean): Readonly<Record<string, string>>;
  readonly workingDirectory: string;
  /** Login shell inside the sandbox. */
  readonly shell: string;
}

/**
 * Runs one command for one relay: start, bytes both ways, exact status.
 *
 * The exit event is sent only when every byte of output has been handed to the gateway. When the output is held open by
 * a grandchild past the limit, or the caller leaves, the process group is ended and no code is invented.
 */
export async function runExec(
  context: ExecContext,
  start: ExecStart,
  input: AsyncIterator<RelayDownlink>,
  channel: RelayChannel,
): Promise<void> {
  if (start.command.length === 0)
    throw new RuntimeError("empty_command", "no command was given", { next: "Name a command to run" });
  const argv = commandLine(start.command, start.noLoginShell, context.shell);
  const folder = workingFolder(start.workingDirectory, context.workingDirectory);
  let process: SandboxProcess;
  try {
    process = await context.boundary.spawn({
      argv,
      env: context.environment(start.environment, start.tty),
      cwd: folder,
      stdio: start.tty ? { kind: "pty", rows: start.rows, columns: start.columns } : { kind: "pipes" },
    });
  } catch (error) {
    const failure = startFailure(error, argv[0] ?? "");
    if (failure === undefined) throw describeFolderFailure(error, folder);
    await channel.send(outputUplink("stderr", Buffer.from(`openshell: ${failure.message}\n`)));
    await channel.send(exitUplink(failure.code));
    channel.end();
    return;
  }
  const stop = new AbortController();
  const onGone = (): void => void kill(process);
  channel.signal.addEventListener("abort", onGone, { once: true });
  if (channel.signal.aborted) onGone();
  let timedOut = false;
  if (start.timeout !== undefined) {
    const milliseconds = Number(start.timeout.seconds) * 1000 + start.timeout.nanos / 1e6;
    void endAfter(context.clock, process, milliseconds, stop.signal).then(
      (ended) => {
        timedOut = ended;
      },
      () => {},
    );
  }
  void feed(process, input, channel);
  try {
    const status = await deliver(context.clock, process, channel, start.tty);
    await channel.send(exitUplink(timedOut ? TIMEOUT_CODE : shellCode(status)));
    channel.end();
  } finally {
    stop.abort();
    channel.signal.removeEventListener("abort", onGone);
    // Whatever else holds the other ends: this host keeps no descriptor for it. A terminal hangs up.
    for (const stream of [process.stdin, process.stdout, process.stderr]) stream?.destroy();
  }
}

/** A relative folder counts from where commands start by default. Links stay for the kernel to follow. */
function workingFolder(wanted: string, usual: string): string {
  if (wanted === "") return usual;
  return wanted.startsWith("/") ? wanted : `${usual}/${wanted}`;
}

/** The foreground group of a terminal need not be the command's own, so the command itself is meant as well. */
async function kill(process: SandboxProcess): Promise<void> {
  await process.signal(SIGKILL, "group").catch(() => {});
  await process.signal(SIGKILL, "process").catch(() => {});
}

/** Ends the group when `milliseconds` pass first; true then. */
async function endAfter(
  clock: Clock,
  process: SandboxProcess,
  milliseconds: number,
  signal: AbortSignal,
): Promise<boolean> {
  await clock.sleep(milliseconds, { signal });
  void (async () => {
    await process.signal(SIGTERM, "group").catch(() => {});
    await clock.sleep(Limits.timeoutGraceMs, { signal });
    await kill(process);
  })().catch(() => {});
  return true;
}

/** Pumps output until both streams ended; returns the status. */
async function deliver(
  clock: Clock,
  process: SandboxProcess,
  channel: RelayChannel,
  tty: boolean,
): Promise<ExitStatus> {
  const stop = new AbortController();
  const held = new HeldOutput(clock);
  const streams = [pump(process.stdout, "stdout", channel, held, tty)];
  if (process.stderr !== undefined) streams.push(pump(process.stderr, "stderr", channel, held, false));
  const output = Promise.all(streams);
  output.catch(() => {});
  const status = await process.exit;
  const late = held.limit(Limits.outputAfterExitMs, stop.signal).then(() => {
    throw new RuntimeError(
      "output_held_open",
      `the command ended, but another process held its output open for ${Limits.outputAfterExitMs / 1000} s`,
      {
        next: "Redirect the output of background processes",
      },
    );
  });
  late.catch(() => {});
  try {
    await Promise.race([output, late]);
  } catch (error) {
    await kill(process);
    throw error;
  } finally {
    stop.abort();
  }
  return status;
}

async function pump(
  stream: NodeJS.ReadableStream,
  name: "stdout" | "stderr",
  channel: RelayChannel,
  held: HeldOutput,
  tty: boolean,
): Promise<void> {
  try {
    for await (const data of stream) await held.excuse(channel.send(outputUplink(name, data as Uint8Array)));
  } catch (error) {
    // A PTY reports its end as EIO, never as end of file.
    if (tty && (error as { code?: unknown }).code === "EIO") return;
    throw error;
  }
}

/** Carries stdin, window sizes and signals until the caller closes its side. */
async function feed(
  process: SandboxProcess,
  input: AsyncIterator<RelayDownlink>,
  channel: RelayChannel,
): Promise<void> {
  const stdin = new StdinWriter(process, Limits.stdinPendingBytes);
  try {
    for (;;) {
      const { done, value } = await input.next();
      if (done) break;
      await applyInput(process, stdin, value);
    }
    await stdin.close();
  } catch (error) {
    channel.abort(error);
  }
}

/** One frame of input for a process; shared by exec and attach. */
export async function applyInput(process: SandboxProcess, stdin: StdinWriter, frame: RelayDownlink): Promise<void> {
  switch (frame.message.case) {
    case "stdin":
      await stdin.write(frame.message.value);
      return;
    case "stdinClosed":
      await stdin.close();
      return;
    case "window":
      await process.resize(frame.message.value.rows, frame.message.value.columns).catch(() => {});
      return;
    case "signal":
      await process.signal(frame.message.value, "group").catch(() => {});
      return;
    default:
      return;
  }
}

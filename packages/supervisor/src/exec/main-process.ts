import type { AttachStart, RelayDownlink } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { type Clock, RuntimeError } from "@openshell/base";
import type { ExitStatus, SandboxProcess } from "@openshell/boundary";
import { Limits } from "../limits.ts";
import { shellCode } from "./command.ts";
import { exitUplink, outputUplink } from "./event-bytes.ts";
import { applyInput } from "./exec.ts";
import { HeldOutput } from "./held-output.ts";
import { OutputLog } from "./output-log.ts";
import type { RelayChannel } from "./relay.ts";
import { StdinWriter } from "./stdin.ts";

/**
 * The sandbox's main process: its output is kept for attachments, one attachment owns its input, and its exit is told
 * once, after the last byte of output.
 */
export class MainProcess {
  readonly #process: SandboxProcess;
  readonly #log: OutputLog;
  readonly #stdin: StdinWriter;
  readonly #held: HeldOutput;
  readonly #exit: Promise<ExitStatus>;
  #inputOwner: RelayChannel | undefined;

  constructor(process: SandboxProcess, clock: Clock, awaitAttachment: boolean) {
    this.#process = process;
    this.#held = new HeldOutput(clock);
    this.#log = new OutputLog(
      { limitBytes: Limits.outputLogBytes, readerChunks: Limits.relayQueueFrames },
      awaitAttachment,
    );
    this.#stdin = new StdinWriter(process, Limits.stdinPendingBytes);
    if (awaitAttachment)
      void clock.sleep(Limits.awaitAttachmentMs, { unref: true }).then(() => this.#log.stopAwaiting());
    const streams = [this.#collect(process.stdout, "stdout")];
    if (process.stderr !== undefined) streams.push(this.#collect(process.stderr, "stderr"));
    const output = Promise.all(streams);
    this.#exit = process.exit.then(async (status) => {
      const stop = new AbortController();
      await Promise.race([output, this.#held.limit(Limits.outputAfterExitMs, stop.signal).catch(() => {})]);
      stop.abort();
      this.#log.end();
      return status;
    });
    this.#exit.catch(() => this.#log.end());
  }

  /** The status, once all output was read. Rejects when the boundary ends first. */
  get exit(): Promise<ExitStatus> {
    return this.#exit;
  }

  acknowledgeExit(): Promise<void> {
    return this.#process.acknowledgeExit();
  }

  /** Serves one attachment: replay, live output, input for one owner at a time, then the exit event. */
  async attach(start: AttachStart, input: AsyncIterator<RelayDownlink>, channel: RelayChannel): Promise<void> {
    const owner = start.stdin && this.#inputOwner === undefined;
    if (owner) {
      this.#inputOwner = channel;
      if (start.rows > 0 && start.columns > 0) await this.#process.resize(start.rows, start.columns).catch(() => {});
    } else if (start.stdin) {
      await channel.send(
        outputUplink(
          "stderr",
          Buffer.from("openshell: the main process already has an input owner; attached read-only\r\n"),
        ),
      );
    }
    void this.#feed(input, channel, owner);
    try {
      for await (const chunk of this.#log.read(channel.signal)) {
        if (channel.signal.aborted) return;
        await channel.send(outputUplink(chunk.stream, chunk.data));
      }
      if (channel.signal.aborted) return;
      await channel.send(exitUplink(shellCode(await this.#exit)));
      channel.end();
    } finally {
      if (this.#inputOwner === channel) this.#inputOwner = undefined;
    }
  }

  async #feed(input: AsyncIterator<RelayDownlink>, channel: RelayChannel, owner: boolean): Promise<void> {
    try {
      for (;;) {
        const { done, value } = await input.next();
        // The caller leaving does not close the main process's input; an explicit stdinClosed does.
        if (done) return;
        if (owner) await applyInput(this.#process, this.#stdin, value);
      }
    } catch (error) {
      channel.abort(error);
    }
  }

  async #collect(stream: NodeJS.ReadableStream, name: "stdout" | "stderr"): Promise<void> {
    try {
      for await (const data of stream)
        await this.#held.excuse(this.#log.append({ stream: name, data: data as Uint8Array }));
    } catch (error) {
      if ((error as { code?: unknown }).code === "EIO") return;
      if (error instanceof RuntimeError) throw error;
    }
  }
}

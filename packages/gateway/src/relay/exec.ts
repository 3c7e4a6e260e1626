import { create, fromBinary } from "@bufbuild/protobuf";
import { type ApiError, failedPrecondition, resourceExhausted, unavailable } from "@openshell/api/errors.ts";
import {
  type Failure,
  type RelayDownlink,
  type RelayUplink,
  StdinClosedSchema,
  WindowSizeSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { ExecSandboxEventSchema, type ExecSandboxExit } from "@openshell/api/generated/openshell_pb.js";
import { DONE } from "../sessions/reader.ts";
import type { RelayChannel } from "./broker.ts";
import { STDIN_FRAME_BYTES } from "./limits.ts";

/** A host's word for a sandbox that runs as many commands as it may. */
const TOO_MANY_RELAYS = "too_many_relays";
/** Told with it. */
const RETRY_AFTER_MS = 100;

/** What the caller sends after the start of an execution. */
export type ExecInput =
  | { readonly kind: "stdin"; readonly data: Uint8Array }
  | { readonly kind: "resize"; readonly rows: number; readonly columns: number };

export interface SpliceOptions {
  readonly channel: RelayChannel;
  /** First frame: what to run, or attach. */
  readonly start: RelayDownlink["message"];
  /** Its end is the process's end of file. Undefined: end of file at once. */
  readonly input: AsyncIterable<ExecInput> | undefined;
  /** Aborts when the caller leaves, or when a limit ends the call. */
  readonly signal: AbortSignal;
}

/** One event for the caller, encoded as the host gave it; output is never decoded on its way. */
export interface SplicedEvent {
  /** An ExecSandboxEvent. */
  readonly bytes: Uint8Array;
  /** Set with the last event. */
  readonly exit: ExecSandboxExit | undefined;
}

/** How an encoded event with an exit begins: the tag of the only field that such an event has. */
const EXIT_TAG = (ExecSandboxEventSchema.field.exit.number << 3) | 2;

function readExit(bytes: Uint8Array): ExecSandboxExit | undefined {
  if (bytes[0] !== EXIT_TAG) return undefined;
  const { payload } = fromBinary(ExecSandboxEventSchema, bytes);
  return payload.case === "exit" ? payload.value : undefined;
}

/**
 * Joins a caller with a relay: input one way, output the other, the exit status last and exactly as the host gave it. A
 * status is never invented: a host that goes away gives UNAVAILABLE, whose meaning is "outcome unknown".
 */
export async function* spliceExec(options: SpliceOptions): AsyncGenerator<SplicedEvent, void, void> {
  const { channel, start, signal } = options;
  const pump = new AbortController();
  let inputFailed: unknown;
  let finished = false;
  const reader = new InterruptibleReader(channel.uplink);
  const onAbort = (): void => {
    reader.interrupt(signal.reason);
    pump.abort(signal.reason);
  };
  if (signal.aborted) onAbort();
  else signal.addEventListener("abort", onAbort, { once: true });
  try {
    await sendOrExplain(channel, start, pump.signal);
    void pumpInput(channel, options.input, pump.signal).catch((error: unknown) => {
      if (pump.signal.aborted) return;
      inputFailed = error;
      reader.interrupt(error);
    });
    for (;;) {
      const next = await reader.next();
      if (next.done) throw hostGone(undefined);
      const { message } = next.value;
      if (message.case === "failure") {
        finished = true;
        throw failureToError(message.value);
      }
      if (message.case !== "execEvent") throw hostGone(undefined);
      const exit = readExit(message.value);
      if (exit !== undefined) finished = true;
      yield { bytes: message.value, exit };
      if (finished) return;
    }
  } catch (error) {
    throw inputFailed ?? error;
  } finally {
    signal.removeEventListener("abort", onAbort);
    pump.abort(DONE);
    channel.close(finished ? "finished" : "cancelled");
    // The stream towards us is given back without waiting for its end.
    channel.uplink.return?.()?.then(undefined, () => {});
  }
}

/** Reading that ends when the caller leaves, even while the host is silent. */
class InterruptibleReader {
  readonly #source: AsyncIterator<RelayUplink>;
  #reject: ((error: unknown) => void) | undefined;
  #interrupted: { readonly error: unknown } | undefined;

  constructor(source: AsyncIterator<RelayUplink>) {
    this.#source = source;
  }

  interrupt(error: unknown): void {
    this.#interrupted ??= { error };
    this.#reject?.(error);
  }

  next(): Promise<IteratorResult<RelayUplink>> {
    return new Promise((resolve, reject) => {
      if (this.#interrupted !== undefined) {
        reject(this.#interrupted.error);
        return;
      }
      this.#reject = reject;
      this.#source.next().then(resolve, (error: unknown) => reject(hostGone(error)));
    });
  }
}

async function sendOrExplain(channel: RelayChannel, message: RelayDownlink["message"], signal: AbortSignal) {
  try {
    await channel.send(message, signal);
  } catch (error) {
    signal.throwIfAborted();
    throw hostGone(error);
  }
}

/** Frames of the caller, in order; then end of file. A process that no longer reads is no error: its exit tells. */
async function pumpInput(channel: RelayChannel, input: AsyncIterable<ExecInput> | undefined, signal: AbortSignal) {
  const send = async (message: RelayDownlink["message"]): Promise<boolean> => {
    try {
      await channel.send(message, signal);
      return true;
    } catch {
      return false;
    }
  };
  for await (const item of input ?? []) {
    if (signal.aborted) return;
    if (item.kind === "resize") {
      const value = create(WindowSizeSchema, { rows: item.rows, columns: item.columns });
      if (!(await send({ case: "window", value }))) return;
      continue;
    }
    for (let offset = 0; offset < item.data.length; offset += STDIN_FRAME_BYTES) {
      const value = item.data.subarray(offset, offset + STDIN_FRAME_BYTES);
      if (!(await send({ case: "stdin", value }))) return;
    }
  }
  await send({ case: "stdinClosed", value: create(StdinClosedSchema) });
}

/** The host ended the relay without a result. */
export function hostGone(cause: unknown): ApiError {
  return unavailable("the connection to the sandbox's supervisor was lost; the outcome of the command is unknown", {
    next: "Check what the command did before running it again",
    cause,
  });
}

/** A host's own refusal: nothing ran, or the result cannot be told. */
export function failureToError(failure: Failure): ApiError {
  const message = failure.message === "" ? `the sandbox's supervisor refused (${failure.code})` : failure.message;
  const options = { next: failure.next };
  if (failure.code === TOO_MANY_RELAYS) return resourceExhausted(message, { ...options, retryDelayMs: RETRY_AFTER_MS });
  return failure.retryable ? unavailable(message, options) : failedPrecondition(message, options);
}

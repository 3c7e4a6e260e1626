import { systemCode } from "@openshell/base/errors.ts";
import { escapeUntrusted } from "@openshell/base/escape.ts";
import type { Surroundings } from "../context.ts";
import { CliError, EXIT } from "../errors.ts";
import { writeAll } from "../output/terminal.ts";
import type { Endpoint } from "../transport/endpoint.ts";
import { decodeEvent, type ExecStart, encodeResize, encodeStart, encodeStdin } from "../transport/exec-codec.ts";
import { type Connection, type GrpcStream, openConnection, openGrpcStream } from "../transport/grpc-stream.ts";
import { STDIN_FRAME_BYTES } from "../transport/limits.ts";
import { RpcError } from "../transport/rpc-error.ts";
import { UnreachableError } from "../transport/unreachable.ts";
import { DetachKeys } from "./detach-keys.ts";
import { makeRaw } from "./raw.ts";
import { Resume } from "./resume.ts";

export interface AttachOptions {
  readonly endpoint: Endpoint;
  /** A connection that was opened beforehand; this call closes it. */
  readonly connection?: Promise<Connection>;
  readonly start: ExecStart;
  /** Attach to the main process instead of starting another one. */
  readonly mainProcess: boolean;
  /** The process has a terminal: ours becomes raw, window sizes follow. */
  readonly tty: boolean;
  /** Ctrl-P Ctrl-Q leaves the process running. */
  readonly detachable: boolean;
  /** So does Ctrl-D, and the end of our input is not the end of the process's. */
  readonly inputOutlivesUs?: boolean;
  /** Called before the first byte of output is written, or at the end when there is none. */
  readonly onOutput?: () => void;
  readonly signal?: AbortSignal;
  /** Called before a lost attachment is made again, or when nobody answers the first: brings back a gateway that crashed. */
  readonly recover?: () => Promise<void>;
}

/** Waits between attempts double; from this one on the person is told. Milliseconds. */
const TOLD_WAIT_MS = 800;

/** Names the run of the main process that is attached to, so that a lost attachment is not made again to another run. */
const RUN_HEADER = "openshell-main-process-run";

interface Run {
  id: string | undefined;
}

export type AttachResult =
  /** `midLine`: the last output left the terminal's cursor within a line. */
  { readonly kind: "exit"; readonly code: number; readonly midLine: boolean } | { readonly kind: "detached" };

const LINE_FEED = 0x0a;

/** Size of the caller's terminal; 0 where it is none. */
export function windowSize(stdout: NodeJS.WriteStream): { readonly cols: number; readonly rows: number } {
  return { cols: stdout.columns ?? 0, rows: stdout.rows ?? 0 };
}

/**
 * Joins this process's standard streams with a process in a sandbox until that ends. Output is written in the order of
 * arrival and at the reader's pace; the status is given back only when every byte was taken. An attachment to a main
 * process that is lost is made again, see {@link Resume}.
 *
 * Throws RpcError, LostError, or CliError 74 when output cannot be delivered.
 */
export async function attach(options: AttachOptions, surroundings: Surroundings): Promise<AttachResult> {
  const resume = new Resume(options.tty);
  const input = new Input(surroundings.stdin, options, resume);
  let connection = options.connection ?? firstConnection(options);
  const run: Run = { id: undefined };
  let told = false;
  for (;;) {
    try {
      return await attachOnce(options, surroundings, connection, input, resume, run);
    } catch (error) {
      if (!options.mainProcess || options.signal?.aborted) throw error;
      const wait = resume.retryAfter(error);
      if (wait === undefined) throw error;
      // A gateway that is being replaced is back before anybody notices; a longer loss is told once.
      if (wait >= TOLD_WAIT_MS && !told) {
        told = true;
        const reason = escapeUntrusted((error as Error).message);
        await writeAll(
          surroundings.stderr,
          `openshell: the connection to the command was lost (${reason}); trying again\n`,
        );
      }
      await pause(wait, options.signal);
      await options.recover?.();
      connection = openConnection(options.endpoint);
    }
  }
}

async function attachOnce(
  options: AttachOptions,
  { stdout, stderr }: Surroundings,
  connection: Promise<Connection>,
  input: Input,
  resume: Resume,
  run: Run,
): Promise<AttachResult> {
  const headers: Record<string, string> = options.mainProcess ? { "openshell-attach": "main-process" } : {};
  if (run.id !== undefined) headers[RUN_HEADER] = run.id;
  const stream = await openGrpcStream(options.endpoint, connection, "ExecSandboxInteractive", headers);
  const onResize = (): void => {
    const { cols, rows } = windowSize(stdout);
    if (cols > 0 && rows > 0) void stream.send(encodeResize(cols, rows));
  };
  const onAbort = (): void => stream.close();
  options.signal?.addEventListener("abort", onAbort, { once: true });
  // An interruption while the connection was being made told nobody.
  if (options.signal?.aborted) onAbort();
  try {
    await stream.send(encodeStart({ ...options.start, ...(options.tty ? windowSize(stdout) : {}) }));
    input.begin(stream);
    if (options.tty) stdout.on("resize", onResize);
    let announced = false;
    const announce = (): void => {
      if (!announced) options.onOutput?.();
      announced = true;
    };
    let midLine = false;
    const pump = async (): Promise<AttachResult> => {
      for await (const message of stream.messages()) {
        run.id ??= stream.header(RUN_HEADER);
        const event = decodeEvent(message);
        if (event === undefined) continue;
        announce();
        if (event.kind === "exit") return { kind: "exit", code: event.code, midLine };
        const data = resume.take(event.data);
        if (data.length === 0) continue;
        const to = event.kind === "stdout" ? stdout : stderr;
        await deliver(to, data);
        if (to.isTTY) midLine = data.at(-1) !== LINE_FEED;
      }
      throw new CliError("the command ended without telling its status", {
        code: "command_status_unknown",
        next: "Check what it did before running it again",
      });
    };
    const result = await Promise.race([pump(), input.detached]);
    announce();
    return result;
  } finally {
    options.signal?.removeEventListener("abort", onAbort);
    stdout.off("resize", onResize);
    input.end();
    stream.close();
  }
}

/** The socket of a gateway that was killed is still there: nothing was sent, so the gateway may be started and asked again. */
async function firstConnection({ endpoint, recover }: AttachOptions): Promise<Connection> {
  try {
    return await openConnection(endpoint);
  } catch (error) {
    if (!(error instanceof UnreachableError) || recover === undefined) throw error;
    await recover();
    return openConnection(endpoint);
  }
}

/** Waits, or throws when everything shall end now. */
function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = (): void => {
      clearTimeout(timer);
      reject(new RpcError("canceled", "interrupted"));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** Resolves when the stream took the data. A reader that left (EPIPE) is told by that error itself, which ends the command without a word. */
function deliver(target: NodeJS.WriteStream, data: Uint8Array): Promise<void> {
  return new Promise((resolve, reject) => {
    target.write(data, (error) => {
      if (!error) resolve();
      else if (systemCode(error) === "EPIPE") reject(error);
      else
        reject(
          new CliError(`output could not be delivered: ${error.message}`, {
            code: "output_undeliverable",
            exitCode: EXIT.delivery,
            cause: error,
          }),
        );
    });
  });
}

/** Our standard input on its way to the process; each attachment begins and ends it. */
class Input {
  readonly #stdin: NodeJS.ReadStream;
  readonly #raw: boolean;
  readonly #keys: DetachKeys | undefined;
  readonly #outlivesUs: boolean;
  readonly #resume: Resume;
  readonly #left = Promise.withResolvers<AttachResult>();
  #stream: GrpcStream | undefined;
  #ended = false;

  constructor(stdin: NodeJS.ReadStream, options: AttachOptions, resume: Resume) {
    this.#stdin = stdin;
    this.#raw = options.tty && stdin.isTTY === true;
    this.#keys = this.#raw && options.detachable ? new DetachKeys(options.inputOutlivesUs) : undefined;
    this.#outlivesUs = options.inputOutlivesUs === true;
    this.#resume = resume;
    // A terminal that was closed fails to change its mode; the signal that comes with it says what to do.
    stdin.on("error", () => {});
  }

  /** Resolves when the person left with the detach keys. */
  get detached(): Promise<AttachResult> {
    return this.#left.promise;
  }

  begin(stream: GrpcStream): void {
    this.#stream = stream;
    if (this.#ended) {
      this.#endOfInput();
      return;
    }
    if (this.#raw) makeRaw(this.#stdin);
    this.#stdin.on("data", this.#onData);
    this.#stdin.once("end", this.#onEnd);
    this.#stdin.once("error", this.#onEnd);
    this.#stdin.resume();
  }

  /** Between attachments the terminal is as it was, so that Ctrl-C interrupts us. */
  end(): void {
    if (this.#stream === undefined) return;
    this.#stream = undefined;
    this.#stdin.off("data", this.#onData);
    this.#stdin.off("end", this.#onEnd);
    this.#stdin.off("error", this.#onEnd);
    this.#stdin.pause();
    if (this.#raw) this.#stdin.setRawMode(false);
  }

  readonly #onEnd = (): void => {
    this.#ended = true;
    this.#endOfInput();
  };

  #endOfInput(): void {
    if (!this.#outlivesUs) this.#stream?.end();
  }

  readonly #onData = (chunk: Buffer | string): void => {
    const data = typeof chunk === "string" ? Buffer.from(chunk) : chunk;
    const { pass, detach } = this.#keys === undefined ? { pass: data, detach: false } : this.#keys.feed(data);
    void this.#forward(pass);
    if (detach) this.#left.resolve({ kind: "detached" });
  };

  async #forward(data: Uint8Array): Promise<void> {
    const stream = this.#stream;
    if (stream === undefined || data.length === 0) return;
    this.#resume.sentInput();
    // The reader sets the pace: nothing more is read before this was taken.
    this.#stdin.pause();
    for (let offset = 0; offset < data.length; offset += STDIN_FRAME_BYTES) {
      await stream.send(encodeStdin(data.subarray(offset, offset + STDIN_FRAME_BYTES)));
    }
    if (this.#stream === stream) this.#stdin.resume();
  }
}

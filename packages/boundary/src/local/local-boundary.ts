import { fstatSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { RuntimeError } from "@openshell/base";
import {
  type Boundary,
  type BoundaryEnd,
  type BoundaryState,
  type CaptureSockets,
  type ExecutableKey,
  type IsolationLayer,
  MAX_CANARIES,
  type Restrictions,
  type SandboxProcess,
  type SocketOwner,
  type SocketPair,
  type SpawnSpec,
} from "../boundary.ts";
import { boundaryLost } from "./boundary-error.ts";
import { ByteWriter } from "./bytes.ts";
import { closeDescriptors, type Message, type MessageChannel } from "./channel.ts";
import {
  FRAME_ACK_EXIT,
  FRAME_CLOSE_STDIN,
  FRAME_CONFIRM,
  FRAME_EXIT,
  FRAME_FREEZE,
  FRAME_IDENTIFY,
  FRAME_LOAD,
  FRAME_MAIN,
  FRAME_REPLACED,
  FRAME_RESUME,
  FRAME_SAVE,
  FRAME_SIGNAL,
  FRAME_SPAWN,
  FRAME_TERMINATE,
  FRAME_THAW,
  readLayers,
} from "./frames.ts";
import {
  decodeAnswers,
  decodeOwners,
  encodeIdentify,
  encodeProbe,
  encodeRestrictions,
  encodeSpawn,
} from "./messages.ts";
import { type Addon, EVENT_READY } from "./native.ts";
import { exitStatus, LocalProcess, openStreams, type ProcessHost } from "./process.ts";

/** A program on a slow file system may take long to load. */
const SPAWN_LIMIT_MS = 30_000;
const SIGKILL = 9;
/** Identify has 5 ms of its own inside; the rest is queueing behind other questions. */
/** Every canary is one or two system calls, the slowest 0.2 s; the rest is a busy machine. */
const PROBE_LIMIT_MS = 10_000;
/** Far more than 64 whole numbers. */
const ANSWER_BYTES = 4_096;
/** Init leaves within its grace time; its processes may take a moment to die. */
const TERMINATE_MARGIN_MS = 10_000;
/** After the connection ended by itself: how long init may take to be gone (a busy kernel) before this counts as a detachment. */
/** Before each try of a question whose identifying process died; the next one takes over within milliseconds. */
const IDENTIFIER_PAUSES_MS = [0, 5, 50] as const;
const GONE_LIMIT_MS = 5_000;
/** For a successor (docs/architecture/boundary.md). */
export const STATE_MAX_BYTES = 256 << 10;

export interface LocalBoundaryParts {
  readonly addon: Addon;
  readonly channel: MessageChannel;
  readonly identifier: MessageChannel;
  readonly openIdentifier: (channel: MessageChannel) => Promise<MessageChannel>;
  readonly sandboxId: string;
  readonly generation: bigint;
  readonly state: BoundaryState;
  readonly frozen: boolean;
  readonly capture: CaptureSockets;
  readonly isolation: readonly IsolationLayer[];
  readonly pidFd: number | undefined;
}

/** The boundary of a sandbox on this kernel; made by `attachLocalBoundary`. */
export class LocalBoundary implements Boundary {
  readonly sandboxId: string;
  readonly generation: bigint;
  readonly state: BoundaryState;
  readonly capture: CaptureSockets;
  readonly isolation: readonly IsolationLayer[];
  readonly ended: Promise<BoundaryEnd>;
  readonly #parts: LocalBoundaryParts;
  readonly #processes = new Map<number, LocalProcess>();
  readonly #settleEnded: (end: BoundaryEnd) => void;
  readonly #gone: Promise<void>;
  readonly #watch: object | undefined;
  #identifier: MessageChannel | Promise<MessageChannel>;
  #main: LocalProcess | undefined;
  #detaching = false;

  constructor(parts: LocalBoundaryParts) {
    this.#parts = parts;
    this.sandboxId = parts.sandboxId;
    this.generation = parts.generation;
    this.state = parts.state;
    this.capture = parts.capture;
    this.isolation = parts.isolation;
    this.#identifier = parts.identifier;
    const { promise, resolve } = Promise.withResolvers<BoundaryEnd>();
    this.ended = promise;
    this.#settleEnded = resolve;
    const gone = Promise.withResolvers<void>();
    this.#gone = gone.promise;
    // A pidfd is readable once the process and its whole pid namespace are gone.
    if (parts.pidFd !== undefined) {
      const onEvent = (event: number): void => {
        if (event === EVENT_READY) gone.resolve();
      };
      this.#watch = parts.addon.open(parts.pidFd, onEvent, true);
    }
  }

  get main(): SandboxProcess | undefined {
    return this.#main;
  }

  async confirm(restrictions: Restrictions): Promise<readonly IsolationLayer[]> {
    return this.#request(FRAME_CONFIRM, encodeRestrictions(restrictions), ({ payload }) => readLayers(payload));
  }

  startMain(spec: SpawnSpec): Promise<SandboxProcess> {
    return this.#start(FRAME_MAIN, spec);
  }

  spawn(spec: SpawnSpec): Promise<SandboxProcess> {
    return this.#start(FRAME_SPAWN, spec);
  }

  async probe(canaries: readonly string[]): Promise<readonly bigint[]> {
    if (canaries.length === 0 || canaries.length > MAX_CANARIES) throw new RangeError("1 to 64 canaries");
    const process = await this.#spawn(FRAME_SPAWN, encodeProbe(canaries), false);
    await using _ended = {
      [Symbol.asyncDispose]: async () => {
        await process.signal(SIGKILL).catch(() => {});
        process.stdin.destroy();
        process.stdout.destroy();
        process.stderr?.destroy();
      },
    };
    const said = (async () => {
      let text = "";
      for await (const part of process.stdout as AsyncIterable<Buffer>) {
        text += part.toString("latin1");
        if (text.length > ANSWER_BYTES) return undefined;
      }
      const status = await process.exit;
      return status.kind === "exited" && status.code === 0 ? decodeAnswers(text, canaries.length) : undefined;
    })();
    const answers = await withLimit(said, PROBE_LIMIT_MS);
    if (answers !== undefined) return answers;
    said.catch(() => {});
    throw new RuntimeError("canaries_unanswered", `Sandbox ${this.sandboxId} did not answer what it can reach`, {
      next: "Start the sandbox again; if that does not help, restart the gateway",
    });
  }

  async identify(socket: SocketPair): Promise<readonly SocketOwner[]> {
    const question = encodeIdentify(socket);
    const ask = (channel: MessageChannel): Promise<readonly SocketOwner[]> =>
      channel.request(FRAME_IDENTIFY, question, (message) => decodeOwners(message, keyOf));
    for (const pause of IDENTIFIER_PAUSES_MS) {
      if (pause > 0) await sleep(pause);
      const channel = await this.#openIdentifier();
      try {
        return await ask(channel);
      } catch (error) {
        if (!channel.closed) throw error;
      }
    }
    throw boundaryLost("the process that finds owners of sockets ends again and again");
  }

  async saveState(blob: Uint8Array): Promise<void> {
    if (blob.length > STATE_MAX_BYTES) {
      throw new RuntimeError("boundary_state_too_large", `State of ${blob.length} bytes, at most ${STATE_MAX_BYTES}`);
    }
    await this.#request(FRAME_SAVE, blob, () => {});
  }

  loadState(): Promise<Uint8Array> {
    return this.#request(FRAME_LOAD, Buffer.alloc(0), ({ payload }) => payload.remaining());
  }

  async freeze(): Promise<void> {
    await this.#request(FRAME_FREEZE, Buffer.alloc(0), () => {});
  }

  async thaw(): Promise<void> {
    await this.#request(FRAME_THAW, Buffer.alloc(0), () => {});
  }

  async resume(): Promise<void> {
    await this.#request(FRAME_RESUME, Buffer.alloc(0), () => {});
  }

  async terminate(graceMs: number): Promise<void> {
    const request = new ByteWriter().u32(Math.max(0, Math.min(Math.round(graceMs), 0xffff_ffff))).finish();
    await this.#request(FRAME_TERMINATE, request, () => {}).catch((error: unknown) => {
      // Init may be faster gone than its answer is read.
      if ((error as { code?: string }).code !== "boundary_lost") throw error;
    });
    const end = await withLimit(this.ended, graceMs + TERMINATE_MARGIN_MS);
    if (end?.kind === "terminated") return;
    throw new RuntimeError("boundary_terminate_failed", `Sandbox ${this.sandboxId} has not ended`, {
      next: "Stop it through the gateway, which ends init by its process id",
    });
  }

  /** Lets go: the sandbox lives on, frozen, until another host attaches or its orphan limit passes. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#detaching = true;
    this.#parts.channel.close("detached");
    await this.ended;
  }

  /** Messages that answer nothing. Called by the channel. */
  onEvent(message: Message): void {
    closeDescriptors(message.fds);
    if (message.type === FRAME_REPLACED) this.#detaching = true;
    if (message.type !== FRAME_EXIT) return;
    const handle = message.payload.u32();
    const status = exitStatus(message.payload.flag(), message.payload.u32());
    this.#processes.get(handle)?.exited(status);
    this.#processes.delete(handle);
  }

  /** The control connection ended. Called by the channel. */
  onClosed(reason: string): void {
    void this.#finish(reason);
  }

  /** The main process that a predecessor started. */
  adoptMain({ payload, fds }: Message): void {
    const handle = payload.u32();
    const pid = payload.u32();
    const terminal = payload.flag();
    const which = payload.u8();
    let next = 0;
    const ends = [0, 1, 2].map((i) => ((which >> i) & 1 ? fds[next++] : undefined));
    const exited = payload.flag();
    const signaled = payload.flag();
    const status = payload.u32();
    this.#main = new LocalProcess(this.#processHost(true), handle, pid, openStreams(this.#parts.addon, ends, terminal));
    if (exited) this.#main.exited(exitStatus(signaled, status));
    else this.#processes.set(handle, this.#main);
  }

  async #finish(reason: string): Promise<void> {
    const { addon, identifier, pidFd } = this.#parts;
    const wait = this.#detaching || pidFd === undefined ? 0 : GONE_LIMIT_MS;
    const gone =
      (await withLimit(
        this.#gone.then(() => true),
        wait,
      )) === true;
    if (this.#watch !== undefined) addon.close(this.#watch);
    identifier.close(reason);
    void Promise.resolve(this.#identifier).then(
      (channel) => channel.close(reason),
      () => {},
    );
    for (const process of this.#processes.values()) process.lost(reason);
    this.#processes.clear();
    if (pidFd !== undefined) closeDescriptors([pidFd]);
    this.#settleEnded({
      kind: gone ? "terminated" : "detached",
      reason: gone ? "the sandbox's init has ended" : reason,
    });
  }

  #request<T>(type: number, payload: Uint8Array, decode: (message: Message) => T, limitMs?: number): Promise<T> {
    return this.#parts.channel.request(type, payload, decode, limitMs);
  }

  #start(type: number, spec: SpawnSpec): Promise<SandboxProcess> {
    return this.#spawn(type, encodeSpawn(spec), spec.stdio.kind === "pty");
  }

  async #spawn(type: number, request: Buffer, terminal: boolean): Promise<SandboxProcess> {
    const decode = ({ payload, fds }: Message): LocalProcess => {
      if (fds.length !== (terminal ? 1 : 3)) throw new RangeError("descriptors are missing");
      const handle = payload.u32();
      const pid = payload.u32();
      const process = new LocalProcess(
        this.#processHost(type === FRAME_MAIN),
        handle,
        pid,
        openStreams(this.#parts.addon, fds, terminal),
      );
      this.#processes.set(handle, process);
      if (type === FRAME_MAIN) this.#main = process;
      return process;
    };
    // Nobody waits any more for what starts after the limit.
    const kill = ({ payload }: Message): void => {
      const late = new ByteWriter().u32(payload.u32()).u32(SIGKILL).flag(true).finish();
      this.#request(FRAME_SIGNAL, late, () => {}).catch(() => {});
    };
    return this.#parts.channel.request(type, request, decode, SPAWN_LIMIT_MS, kill);
  }

  #processHost(main: boolean): ProcessHost {
    const plain = (type: number) => () => this.#request(type, Buffer.alloc(0), () => {});
    return {
      addon: this.#parts.addon,
      signal: (handle, number, group) =>
        this.#request(FRAME_SIGNAL, new ByteWriter().u32(handle).u32(number).flag(group).finish(), () => {}),
      closeMainStdin: main ? plain(FRAME_CLOSE_STDIN) : undefined,
      acknowledgeExit: main ? plain(FRAME_ACK_EXIT) : undefined,
    };
  }

  /** The connection, opened again once when the identifying process has died. */
  async #openIdentifier(): Promise<MessageChannel> {
    const current = await this.#identifier;
    if (!current.closed) return current;
    this.#identifier = this.#parts.openIdentifier(this.#parts.channel);
    // A failure rejects this question; the next one tries again.
    return this.#identifier.catch((error: unknown) => {
      this.#identifier = current;
      throw error;
    });
  }
}

/** The descriptor's own facts, not init's word. */
function keyOf(fd: number): ExecutableKey {
  const stat = fstatSync(fd, { bigint: true });
  return { dev: stat.dev, ino: stat.ino, size: stat.size, mtimeNs: stat.mtimeNs, ctimeNs: stat.ctimeNs };
}

async function withLimit<T>(promise: Promise<T>, ms: number): Promise<T | undefined> {
  let timer: NodeJS.Timeout | undefined;
  const limit = new Promise<undefined>((resolve) => {
    timer = setTimeout(() => resolve(undefined), ms);
  });
  try {
    return await Promise.race([promise, limit]);
  } finally {
    clearTimeout(timer);
  }
}

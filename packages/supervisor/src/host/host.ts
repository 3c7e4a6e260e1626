import { create } from "@bufbuild/protobuf";
import {
  type AttachSandbox,
  FailureSchema,
  HeldSandboxSchema,
  type HostDownlink,
  HostHeartbeatSchema,
  HostHelloSchema,
  type HostUplink,
  HostUplinkSchema,
  SandboxAttachFailedSchema,
  SandboxDetachedSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { type Clock, describeError, LogField, RuntimeError } from "@openshell/base";
import { BoundedQueue } from "@openshell/base/queue.ts";
import { Limits } from "../limits.ts";
import type { SandboxSupervisor } from "../session/supervisor.ts";
import { type GatewayLink, HOST_SECRET_HEADER } from "./link.ts";

export interface HostLogger {
  info(fields: Readonly<Record<string, unknown>>, message: string): void;
  warn(fields: Readonly<Record<string, unknown>>, message: string): void;
  error(fields: Readonly<Record<string, unknown>>, message: string): void;
}

export interface HostDeps {
  readonly hostId: string;
  readonly instanceId: string;
  readonly build: string;
  /** Hex; shown to the gateway at each dial, never logged. */
  readonly secret: string;
  readonly link: GatewayLink;
  readonly clock: Clock;
  readonly log: HostLogger;
  /** Attaches to the sandbox's boundary and makes its supervisor. */
  readonly open: (assignment: AttachSandbox) => Promise<SandboxSupervisor>;
}

/** Attaching again would meet the same. */
const FINAL_ATTACH_FAILURES: ReadonlySet<string> = new Set(["boundary_untrusted", "incomplete_assignment"]);

/** A reason to end the process; code 0 for an orderly end. */
export interface HostEnd {
  readonly reason: string;
  readonly code: number;
}

/**
 * A supervisor host: many sandboxes, one stream of assignments. Sandboxes go on while the gateway is away; the host
 * dials until it is back. It ends when the gateway says so, or refuses it, and without sandboxes when none comes back for
 * {@link Limits.lonelyMs}.
 */
export class Host implements AsyncDisposable {
  readonly #deps: HostDeps;
  readonly #sandboxes = new Map<string, Held>();
  /** Sandboxes that are being let go of. */
  readonly #leaving = new Map<string, Promise<void>>();
  readonly #stop = new AbortController();
  #uplink: BoundedQueue<HostUplink> | undefined;
  #away = false;
  /** Monotonic time at which a gateway was there last. */
  #seen: number;

  constructor(deps: HostDeps) {
    this.#deps = deps;
    this.#seen = deps.clock.monotonic();
  }

  /** Dials again at once: somebody says that the gateway is back. */
  poke(): void {
    this.#wake?.();
  }
  #wake: (() => void) | undefined;

  async run(): Promise<HostEnd> {
    const { clock, link, log } = this.#deps;
    let backoff: number = Limits.reconnectMinimumMs;
    for (;;) {
      const startedAt = clock.monotonic();
      try {
        const end = await this.#connect();
        if (end !== undefined) return end;
      } catch (error) {
        if (this.#stop.signal.aborted) return { reason: "stopped", code: 0 };
        // Once an absence: a host may be without its gateway for days.
        if (!this.#away) log.warn({ err: describeError(error) }, "the gateway is away; dialling until it is back");
        this.#away = true;
      }
      if (this.#stop.signal.aborted) return { reason: "stopped", code: 0 };
      if (this.#lonely) return { reason: "no gateway and no sandboxes", code: 0 };
      link.reset();
      if (clock.monotonic() - startedAt > 1_000) backoff = Limits.reconnectMinimumMs;
      const poked = new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
      await Promise.race([clock.sleep(backoff), poked]);
      backoff = Math.min(backoff * 2, Limits.reconnectMaximumMs);
    }
  }

  /** Nobody would miss it: it has no sandboxes, and no gateway has been there for so long. */
  get #lonely(): boolean {
    const holds = this.#sandboxes.size + this.#leaving.size > 0;
    return !holds && this.#deps.clock.monotonic() - this.#seen > Limits.lonelyMs;
  }

  /** Lets go of every sandbox and ends `run`. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort();
    this.#uplink?.close();
    this.#wake?.();
    await Promise.allSettled([...this.#sandboxes.values()].map((held) => this.#release(held)));
  }

  async #connect(): Promise<HostEnd | undefined> {
    const { hostId, instanceId, build, secret, link, clock } = this.#deps;
    const uplink = new BoundedQueue<HostUplink>(1_024);
    this.#uplink = uplink;
    const held = [...this.#sandboxes.values()].map((sandbox) =>
      create(HeldSandboxSchema, {
        sandboxId: sandbox.id,
        generation: sandbox.generation,
        mainProcessRunning: sandbox.supervisor?.mainProcessRunning ?? false,
      }),
    );
    this.#send({
      case: "hello",
      value: create(HostHelloSchema, {
        protocolRevision: Limits.protocolRevision,
        hostId,
        instanceId,
        pid: process.pid,
        build,
        held,
      }),
    });
    let accepted = false;
    const stopBeat = new AbortController();
    const stream = link.sessions.connectHost(uplink, {
      signal: this.#stop.signal,
      headers: { [HOST_SECRET_HEADER]: secret },
    });
    try {
      for await (const message of stream) {
        if (message.message.case === "accepted") {
          if (this.#away) this.#deps.log.info({}, "the gateway is back");
          this.#away = false;
          accepted = true;
          void this.#beat(stopBeat.signal, clock);
        }
        const end = await this.#handle(message);
        if (end !== undefined) return end;
      }
      return undefined;
    } finally {
      if (accepted) this.#seen = clock.monotonic();
      stopBeat.abort();
      uplink.close();
    }
  }

  async #handle({ message }: HostDownlink): Promise<HostEnd | undefined> {
    switch (message.case) {
      case "attach":
        this.#attach(message.value);
        return undefined;
      case "detach": {
        const held = this.#sandboxes.get(message.value.sandboxId);
        if (held !== undefined && held.generation === message.value.generation) void this.#release(held);
        return undefined;
      }
      case "token":
        this.#sandboxes.get(message.value.sandboxId)?.supervisor?.renew(message.value);
        return undefined;
      case "shutdown":
        return { reason: message.value.reason, code: 0 };
      case "rejected":
        return { reason: message.value.failure?.message ?? "the gateway refused this host", code: 1 };
      default:
        return undefined;
    }
  }

  #attach(assignment: AttachSandbox): void {
    const { sandboxId, generation } = assignment;
    const present = this.#sandboxes.get(sandboxId);
    if (present !== undefined) {
      if (present.generation === generation) {
        if (assignment.token !== undefined) present.supervisor?.renew(assignment.token);
        return;
      }
      void this.#release(present);
    }
    if (this.#sandboxes.size >= Limits.sandboxes) {
      this.#attachFailed(
        assignment,
        new RuntimeError("host_full", `this host holds ${Limits.sandboxes} sandboxes already`),
      );
      return;
    }
    const held: Held = {
      id: sandboxId,
      generation,
      supervisor: undefined,
      opening: Promise.resolve(),
      released: false,
    };
    this.#sandboxes.set(sandboxId, held);
    held.opening = this.#open(held, assignment);
    void this.#hold(held, assignment);
  }

  /** What held the sandbox before lets go first: of two attachments to one init the later one stays. */
  async #open(held: Held, assignment: AttachSandbox): Promise<void> {
    await this.#leaving.get(held.id);
    if (!held.released) held.supervisor = await this.#deps.open(assignment);
  }

  async #hold(held: Held, assignment: AttachSandbox): Promise<void> {
    const { log } = this.#deps;
    const fields = { [LogField.sandboxId]: held.id, [LogField.generation]: String(held.generation) };
    try {
      await held.opening;
      if (held.released || held.supervisor === undefined) return;
      log.info(fields, "attached");
      const end = await held.supervisor.run();
      log.info({ ...fields, reason: end.reason }, end.kind);
    } catch (error) {
      log.error({ ...fields, err: describeError(error) }, "attaching to the sandbox failed");
      if (!held.released) this.#attachFailed(assignment, error);
    }
    await this.#release(held);
  }

  /** Says that the sandbox is let go of when it is: an attachment under way ends first. */
  async #release(held: Held): Promise<void> {
    if (held.released) return;
    held.released = true;
    if (this.#sandboxes.get(held.id) === held) this.#sandboxes.delete(held.id);
    const leaving = this.#leave(held);
    this.#leaving.set(held.id, leaving);
    await leaving;
    if (this.#leaving.get(held.id) === leaving) this.#leaving.delete(held.id);
  }

  async #leave(held: Held): Promise<void> {
    await held.opening.catch(() => {});
    await held.supervisor?.[Symbol.asyncDispose]().catch((error: unknown) =>
      this.#deps.log.error({ err: describeError(error) }, "letting go of a sandbox failed"),
    );
    this.#send({
      case: "detached",
      value: create(SandboxDetachedSchema, { sandboxId: held.id, generation: held.generation }),
    });
  }

  #attachFailed(assignment: AttachSandbox, error: unknown): void {
    const known = error instanceof RuntimeError;
    this.#send({
      case: "attachFailed",
      value: create(SandboxAttachFailedSchema, {
        sandboxId: assignment.sandboxId,
        generation: assignment.generation,
        failure: create(FailureSchema, {
          code: known ? error.code : "attach_failed",
          message: known ? error.message : "attaching to the sandbox failed",
          next: known ? error.next : "See the host's log",
          // The gateway knows whether there is still something to attach to.
          retryable: !(known && FINAL_ATTACH_FAILURES.has(error.code)),
        }),
      }),
    });
  }

  async #beat(signal: AbortSignal, clock: Clock): Promise<void> {
    while (!signal.aborted) {
      await clock.sleep(Limits.heartbeatMs, { signal, unref: true }).catch(() => {});
      if (signal.aborted) return;
      this.#send({
        case: "heartbeat",
        value: create(HostHeartbeatSchema, {
          sandboxes: this.#sandboxes.size,
          residentBytes: residentBytes(),
          readinessLapsed: [...this.#sandboxes.values()]
            .filter(({ supervisor }) => supervisor?.readinessLapsed ?? true)
            .map(({ id }) => id),
        }),
      });
    }
  }

  #send(message: HostUplink["message"]): void {
    const uplink = this.#uplink;
    if (uplink === undefined) return;
    if (!uplink.offer(create(HostUplinkSchema, { message }))) uplink.close();
  }
}

interface Held {
  readonly id: string;
  readonly generation: bigint;
  supervisor: SandboxSupervisor | undefined;
  /** Rejects when attaching failed. */
  opening: Promise<void>;
  released: boolean;
}

/** 0 when it cannot be told: reading it takes a descriptor, and a host without any is alive all the same. */
function residentBytes(): bigint {
  try {
    return BigInt(process.memoryUsage.rss());
  } catch {
    return 0n;
  }
}

import { randomUUID } from "node:crypto";
import type { AttachSandbox, SandboxToken } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { type Clock, describeError } from "@openshell/base";
import type { Boundary } from "@openshell/boundary";
import type { ConfigurationController } from "../config/controller.ts";
import type { ImageRoot } from "../config/image-root.ts";
import type { GatewayLink } from "../host/link.ts";
import { Limits } from "../limits.ts";
import type { LogPusher } from "../logs/log-pusher.ts";
import type { SandboxLog } from "../logs/sandbox-log.ts";
import type { ReadinessTracker } from "./readiness.ts";
import { Session } from "./session.ts";
import type { Workload } from "./workload.ts";

export interface SupervisorDeps {
  readonly assignment: AttachSandbox;
  readonly link: GatewayLink;
  readonly clock: Clock;
  readonly log: SandboxLog;
  readonly pusher: LogPusher;
  readonly boundary: Boundary;
  readonly workload: Workload;
  readonly configuration: ConfigurationController;
  readonly root: ImageRoot;
  readonly readiness: ReadinessTracker;
}

/** How a supervisor's work ended. */
export type SupervisorEnd = { readonly kind: "sandbox_ended" | "detached" | "rejected"; readonly reason: string };

/**
 * One object a sandbox: keeps its session with the gateway, over reconnects, until the sandbox or the assignment ends.
 * Holds no state outside itself, so one host process carries many.
 */
export class SandboxSupervisor implements AsyncDisposable {
  readonly #deps: SupervisorDeps;
  readonly #stop = new AbortController();
  readonly #instanceId = randomUUID();
  #token: { readonly token: string; readonly epoch: bigint };
  #running: Promise<SupervisorEnd> | undefined;

  constructor(deps: SupervisorDeps) {
    this.#deps = deps;
    this.#token = { token: deps.assignment.token?.token ?? "", epoch: deps.assignment.token?.epoch ?? 0n };
  }

  get sandboxId(): string {
    return this.#deps.assignment.sandboxId;
  }

  get generation(): bigint {
    return this.#deps.assignment.generation;
  }

  get mainProcessRunning(): boolean {
    return this.#deps.workload.main !== undefined;
  }

  /** Nothing vouches for what was observed last: the gateway must not renew it. */
  get readinessLapsed(): boolean {
    return !this.#deps.readiness.vouched;
  }

  /** A fresh token; used from the next dial on. */
  renew(token: SandboxToken): void {
    this.#token = { token: token.token, epoch: token.epoch };
  }

  /** Runs until the sandbox ends, the gateway rejects it, or `detach` is called. */
  run(): Promise<SupervisorEnd> {
    this.#running ??= this.#run();
    return this.#running;
  }

  /** Lets go of the sandbox without ending it. */
  detach(): void {
    this.#stop.abort();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.detach();
    await this.#running?.catch(() => {});
    this.#deps.pusher.close();
    await this.#deps.workload[Symbol.asyncDispose]();
  }

  async #run(): Promise<SupervisorEnd> {
    const { assignment, boundary, clock, log } = this.#deps;
    const ended = boundary.ended.then(
      (end): SupervisorEnd => ({ kind: end.kind === "detached" ? "detached" : "sandbox_ended", reason: end.reason }),
    );
    let epoch = 0n;
    let away = false;
    let backoff: number = Limits.reconnectMinimumMs;
    const layout = assignment.local?.layout;
    for (;;) {
      if (this.#stop.signal.aborted) return { kind: "detached", reason: "the gateway released the sandbox" };
      epoch += 1n;
      const session = new Session({
        ...this.#deps,
        identity: {
          sandboxId: assignment.sandboxId,
          generation: assignment.generation,
          instanceId: this.#instanceId,
          connectionEpoch: epoch,
          workloadIdentity: `${layout?.uid ?? 0}:${layout?.gid ?? 0}`,
          token: () => this.#token,
        },
      });
      const stopSession = new AbortController();
      const signal = AbortSignal.any([this.#stop.signal, stopSession.signal]);
      const startedAt = clock.monotonic();
      const outcome = await Promise.race([session.run(signal), ended]);
      stopSession.abort();
      if (outcome.kind === "sandbox_ended" || outcome.kind === "detached") return outcome;
      if (outcome.kind === "rejected") {
        log.error(`the gateway rejected the session: ${outcome.reason}`);
        return { kind: "rejected", reason: outcome.reason };
      }
      // Once an absence: without a gateway this goes on four times a second, and would push everything else out of the log.
      if (session.accepted) away = false;
      if (outcome.kind === "lost" && !away) log.warn(`the session was lost: ${describeError(outcome.error)}`);
      away = true;
      if (clock.monotonic() - startedAt > 1_000) backoff = Limits.reconnectMinimumMs;
      await Promise.race([clock.sleep(backoff, { signal: this.#stop.signal }).catch(() => {}), ended]);
      backoff = Math.min(backoff * 2, Limits.reconnectMaximumMs);
    }
  }
}

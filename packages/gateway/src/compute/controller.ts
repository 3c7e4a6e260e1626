import { create } from "@bufbuild/protobuf";
import { SandboxPhase } from "@openshell/api";
import { unavailable } from "@openshell/api/errors.ts";
import {
  EndSandboxSchema,
  type Failure,
  type HeldSandbox,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { timestampMs, toDuration } from "@openshell/api/times.ts";
import { type Clock, describeError, LogField } from "@openshell/base";
import { type ComputeDriver, DriverError, type StartedSandbox } from "@openshell/drivers/driver.ts";
import type { Logger } from "pino";
import type { HostLauncher } from "../hosts/types.ts";
import type { Attachments } from "../relay/attachments.ts";
import type { RelayBroker } from "../relay/broker.ts";
import { failureText } from "../sessions/failure.ts";
import type { Assignment, HostEvents, HostRegistry } from "../sessions/hosts.ts";
import { DONE } from "../sessions/reader.ts";
import type { SessionRegistry } from "../sessions/registry.ts";
import type { StagedArchives } from "../staging/archives.ts";
import type { Command } from "../store/command.ts";
import { isStoreError } from "../store/errors.ts";
import type { HostRecord, SandboxChange, SandboxPatch, SandboxRecord, Store } from "../store/types.ts";
import { KeyedQueue } from "./keyed-queue.ts";
import { type AttachFacts, attachFacts, attachMessage, type LaunchFacts, sandboxIntent } from "./launch.ts";
import {
  EPHEMERAL_GRACE_MS,
  PROVISIONING_LIMIT_MS,
  REATTACH_LIMIT_MS,
  RESTART_LAST_MS,
  RETRY_FIRST_MS,
  RETRY_LAST_MS,
  STOP_GRACE_MS,
  STOP_REPORT_MS,
} from "./limits.ts";
import { nextRun, restartsAtAll, startCutOff } from "./restart.ts";
import { encodeRuntimeFacts, isEphemeral, runtimeFacts } from "./runtime-record.ts";
import type { SandboxFeeds } from "./sandbox-feed.ts";
import {
  deletingPatch,
  failedStepReason,
  isTerminal,
  type ReadyReason,
  restartPending,
  wantsToRun,
  withCondition,
  withPhase,
} from "./status.ts";
import { VolumeReview } from "./volume-review.ts";

export interface ControllerDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly log: Logger;
  readonly driver: ComputeDriver;
  readonly launcher: HostLauncher;
  readonly hosts: HostRegistry;
  readonly sessions: SessionRegistry;
  readonly broker: RelayBroker;
  readonly attachments: Attachments;
  readonly feeds: SandboxFeeds;
  /** Where archives wait that sandboxes are made of. */
  readonly archives: Pick<StagedArchives, "release">;
  /** Secrets, CA and volumes that a launch needs, read anew each time. */
  readonly launchFacts: (record: SandboxRecord) => Promise<LaunchFacts>;
  readonly alwaysDenied: () => readonly string[];
  /** Boot of this machine: processes recorded under another one are gone. */
  readonly bootId: string;
  readonly logDirectory: (sandboxId: string) => string;
  /** Stores a fresh attach nonce for a generation. */
  readonly storeNonce: (record: SandboxRecord, generation: bigint) => Command<void>;
}

/**
 * Makes reality follow the store. The phase of a record is the intent: whoever changes it stores it first and then asks
 * for a run, and a run reads the newest record and takes the next step towards it. Every step may be repeated after a crash
 * at any point of its earlier run, so a restarted gateway only asks for a run of every record.
 */
export class SandboxController implements Omit<HostEvents, "onRenewed"> {
  readonly #deps: ControllerDeps;
  readonly #queue: KeyedQueue;
  readonly #retries = new Map<string, { attempt: number; cancel: AbortController }>();
  readonly #provisioning = new Map<string, AbortController>();
  readonly #draining = new Map<string, bigint>();
  /** Generations that wait for the time of their restart; `due` once it has come, whatever the wall clock says. */
  readonly #restarts = new Map<
    string,
    { readonly generation: bigint; due: boolean; readonly timer: AbortController }
  >();
  readonly #launchWrites = new Map<string, Promise<unknown>>();
  /** When attaching to a sandbox began to fail; monotonic. */
  readonly #attachFailures = new Map<string, number>();
  /** What the latest failed step said; forgotten when the sandbox runs or rests. */
  readonly #lastFailure = new Map<string, string>();
  readonly #closed = new AbortController();
  /** What sandboxes leave in their volumes. */
  readonly volumes: VolumeReview;

  constructor(deps: ControllerDeps) {
    this.#deps = deps;
    this.volumes = new VolumeReview({ ...deps, change: (id, patch) => this.#change(id, patch) });
    this.#queue = new KeyedQueue(
      (id) => this.#work(id),
      (id, error) => this.#retry(id, error),
    );
  }

  /** Takes the next step for this sandbox; resolves when the run has ended, whatever came of it. */
  request(id: string): Promise<void> {
    if (this.#closed.signal.aborted) return Promise.resolve();
    return this.#queue.request(id);
  }

  /** Stops acting and waits for running steps. Nothing is stopped or deleted: the next gateway goes on. */
  async close(): Promise<void> {
    this.#closed.abort();
    for (const { cancel } of this.#retries.values()) cancel.abort();
    for (const timer of this.#provisioning.values()) timer.abort(DONE);
    for (const { timer } of this.#restarts.values()) timer.abort(DONE);
    await this.#queue.idle();
  }

  /** Resolves when it is stored that this sandbox was launched: only then may its workload start. */
  async launchRecorded(id: string): Promise<void> {
    await this.#launchWrites.get(id);
  }

  /** The main process of this generation has ended and that is stored: compute is released once its output was taken. */
  mainProcessEnded(record: SandboxRecord): void {
    const { attachments, clock } = this.#deps;
    const { awaitAttachment } = runtimeFacts(record);
    this.#draining.set(record.id, record.generation);
    void attachments.drained(record.id, awaitAttachment, clock).then(async () => {
      // Whoever was attached asks for the log next, and removes the sandbox then.
      if (isEphemeral(record) && awaitAttachment) await clock.sleep(EPHEMERAL_GRACE_MS, { unref: true });
      if (this.#draining.get(record.id) === record.generation) this.#draining.delete(record.id);
      return this.request(record.id);
    });
  }

  /** Whether the output of an ended main process of this generation is still there for those who attach. */
  holdsOutput(id: string, generation: bigint): boolean {
    return this.#draining.get(id) === generation;
  }

  /** The workload runs: nothing limits the start any more. */
  started(id: string): void {
    this.#provisioning.get(id)?.abort();
    this.#provisioning.delete(id);
    this.#retries.delete(id);
    this.#attachFailures.delete(id);
    this.#lastFailure.delete(id);
  }

  /** The start waits for somebody to correct its configuration: that has a limit of its own. */
  pauseProvisioning(id: string): void {
    this.#provisioning.get(id)?.abort(DONE);
    this.#provisioning.delete(id);
  }

  /** A start that was paused goes on, within the limit of a start. */
  resumeProvisioning(record: SandboxRecord): void {
    const { phase } = record.status;
    if (wantsToRun(phase) && phase !== SandboxPhase.READY) this.#limitProvisioning(record);
  }

  /** Sets the phase to ERROR unless somebody meant something else meanwhile, then releases compute. */
  async fail(id: string, generation: bigint, reason: ReadyReason, message: string): Promise<void> {
    const record = await this.#change(id, (current) => {
      if (current.generation !== generation || !wantsToRun(current.status.phase)) return undefined;
      // Its main process has ended in order: what becomes of the rest of this run is of no interest.
      if (restartPending(current.status)) return undefined;
      return { status: withPhase(current.status, SandboxPhase.ERROR, reason, message, this.#deps.clock.now()) };
    });
    if (record?.status.phase !== SandboxPhase.ERROR) return;
    this.#deps.log.warn({ [LogField.sandboxId]: id, [LogField.code]: reason }, message);
    this.#deps.feeds.of(id).addEvent({ type: "Warning", reason, message }, this.#deps.clock.now());
    // An ephemeral sandbox goes with its release: whoever was announced is told the reason first.
    if (isEphemeral(record) && runtimeFacts(record).awaitAttachment) this.mainProcessEnded(record);
    else void this.request(id);
  }

  /** A start ended before the main process ran. False: it is not repeated, and the sandbox has failed. */
  async repeatStart(id: string, generation: bigint): Promise<boolean> {
    let repeated = false;
    await this.#modify(id, (current) => {
      repeated = false;
      if (current.generation !== generation || !wantsToRun(current.status.phase) || restartPending(current.status))
        return undefined;
      const patch = startCutOff(current, this.#deps.clock.now());
      repeated = patch !== undefined;
      return patch && { patch };
    });
    if (repeated) void this.request(id);
    return repeated;
  }

  onHeld(hostId: string, held: readonly HeldSandbox[]): void {
    for (const { sandboxId, generation } of held) void this.#decideHeld(hostId, sandboxId, generation);
  }

  onAttachFailed(sandboxId: string, generation: bigint, reason: Failure | undefined): void {
    const { clock, hosts, store } = this.#deps;
    if (hosts.assignment(sandboxId)?.generation !== generation) return;
    hosts.unassign(sandboxId, "attach failed");
    const message = `the supervisor could not attach to the sandbox: ${failureText(reason)}`;
    const since = this.#attachFailures.get(sandboxId) ?? clock.monotonic();
    this.#attachFailures.set(sandboxId, since);
    const decide = async (): Promise<void> => {
      const record = await store.sandboxes.byId(sandboxId);
      // A workload that runs is worth every attempt while its init still waits for a host.
      const running = record?.status.mainProcessStartedTime !== undefined;
      const patient = clock.monotonic() - since < REATTACH_LIMIT_MS;
      if (patient && (running || reason?.retryable === true)) this.#retry(sandboxId, new Error(message));
      else await this.fail(sandboxId, generation, running ? "SandboxEnded" : "StartFailed", message);
    };
    void decide().catch((error: unknown) => this.#retry(sandboxId, error));
  }

  onDetached(sandboxId: string, generation: bigint): void {
    const { hosts } = this.#deps;
    if (hosts.assignment(sandboxId)?.generation !== generation) return;
    hosts.unassign(sandboxId, "the host let go of it");
    void this.request(sandboxId);
  }

  /** A host process is gone: its sandboxes get another one, which attaches to what still runs. */
  hostGone(host: HostRecord, isolate: boolean): void {
    const { clock, feeds, hosts } = this.#deps;
    const message = isolate
      ? "HIGH: the supervisor host died again and again; its sandboxes get a host each from now on"
      : "the supervisor host died; the sandbox is frozen until another one attaches";
    for (const { sandboxId } of hosts.assignedTo(host.id)) {
      hosts.unassign(sandboxId, "the host is gone");
      feeds.of(sandboxId).addEvent({ type: "Warning", reason: "SupervisorLost", message }, clock.now());
      void this.request(sandboxId);
    }
  }

  async #decideHeld(hostId: string, sandboxId: string, generation: bigint): Promise<void> {
    await this.request(sandboxId);
    const { hosts } = this.#deps;
    const assignment = hosts.assignment(sandboxId);
    if (assignment?.hostId === hostId && assignment.generation === generation) return;
    hosts.detach(hostId, sandboxId, generation, "this sandbox is not yours");
  }

  async #work(id: string): Promise<void> {
    const { store, hosts } = this.#deps;
    if (this.#closed.signal.aborted) return;
    const record = await store.sandboxes.byId(id);
    if (record === undefined) {
      hosts.unassign(id, "deleted");
      return;
    }
    const { phase } = record.status;
    const waiting = restartPending(record.status);
    if (!waiting || this.#restarts.get(id)?.generation !== record.generation) this.#forgetRestart(id);
    if (phase === SandboxPhase.DELETING) await this.#delete(record);
    else if (phase === SandboxPhase.STOPPING) await this.#stop(record);
    else if (isTerminal(phase)) await this.#release(record);
    else if (waiting) await this.#restart(record);
    else if (wantsToRun(phase)) await this.#run(record);
    this.#retries.delete(id);
  }

  /** Init stands, and a host is told to attach. The rest comes from the session. */
  async #run(record: SandboxRecord): Promise<void> {
    const { driver, hosts, launcher } = this.#deps;
    const assignment = hosts.assignment(record.id);
    if (assignment?.generation === record.generation) return;
    if (record.status.phase !== SandboxPhase.READY) this.#limitProvisioning(record);
    const facts = runtimeFacts(record);
    const launched = facts.launchedGeneration === record.generation;
    // Nothing depends on the host before the attach, and a first host takes longer to start than init.
    launcher.ensure(record.workspace, record.id).catch(() => {});
    const launch = await this.#deps.launchFacts(record);
    let running: StartedSandbox | undefined;
    if (launched) {
      const found = await driver.inspect(record.id);
      running = found?.generation === record.generation ? found.running : undefined;
      if (running === undefined) return await this.#lost(record);
    } else {
      running = await this.#launch(record, launch);
      if (running === undefined) return;
    }
    const { alwaysDenied, logDirectory } = this.#deps;
    const where = { started: running, alwaysDenied: alwaysDenied(), logDirectory: logDirectory(record.id) };
    // Asked again: the host of before may have died while init was started, and nobody tells of that a second time.
    const { id: hostId } = await launcher.ensure(record.workspace, record.id);
    hosts.assign(assignmentTo(hostId, attachFacts(record, launch, where)));
  }

  /** Starts init for a generation that was never started. Undefined: it failed for good, and that is stored. */
  async #launch(record: SandboxRecord, launch: LaunchFacts): Promise<StartedSandbox | undefined> {
    const { driver } = this.#deps;
    this.volumes.forget(record.id);
    const intent = sandboxIntent(record, launch);
    const onProgress = (message: string): Promise<boolean> => this.#noteProgress(record, message);
    try {
      let started: StartedSandbox;
      if (record.generation === 1n) started = await driver.create(intent, onProgress);
      else {
        // What is left of the generation before must be gone first; nothing is the usual case.
        const before = await driver.inspect(record.id);
        if (before?.running !== undefined && before.generation !== record.generation) await driver.stop(record.id);
        // It may have been stopped before it was ever created.
        started = before === undefined ? await driver.create(intent, onProgress) : await driver.start(intent);
      }
      this.#recordLaunch(record, started);
      // The driver keeps what it made of it.
      if (intent.root.kind === "staged") void this.#deps.archives.release(record.id);
      return started;
    } catch (error) {
      if (error instanceof DriverError && !error.retryable) {
        await this.fail(record.id, record.generation, "StartFailed", describeError(error));
        return undefined;
      }
      throw error;
    }
  }

  /** Shows what a long preparation does; it goes on, without the limit of a start, while the sandbox is still wanted. */
  async #noteProgress({ id, generation }: SandboxRecord, message: string): Promise<boolean> {
    const facts = { type: "Ready", status: "False", reason: "DependenciesNotReady", message } as const;
    const wanted = (record: SandboxRecord): boolean =>
      record.generation === generation && wantsToRun(record.status.phase) && !this.#closed.signal.aborted;
    const record = await this.#change(id, (current) =>
      wanted(current) ? { status: withCondition(current.status, facts, this.#deps.clock.now()) } : undefined,
    );
    if (record === undefined || !wanted(record)) return false;
    this.#provisioning.get(id)?.abort();
    this.#provisioning.delete(id);
    this.#limitProvisioning(record);
    return true;
  }

  /** Stored while the host attaches; the session waits for it before the workload may start. */
  #recordLaunch(record: SandboxRecord, started: StartedSandbox): void {
    const write = this.#change(record.id, (current) => {
      if (current.generation !== record.generation) return undefined;
      const facts = { ...runtimeFacts(current), launchedGeneration: record.generation, bootId: started.record.bootId };
      return { runtimeRecord: encodeRuntimeFacts(facts) };
    });
    this.#launchWrites.set(record.id, write);
    write
      .catch((error: unknown) => this.#retry(record.id, error))
      .finally(() => {
        if (this.#launchWrites.get(record.id) === write) this.#launchWrites.delete(record.id);
      });
  }

  /**
   * The driver no longer runs a workload that was launched: it is never started twice by itself. What the end of the
   * machine ended is taken for stopped, and started again where the restart policy says so.
   */
  async #lost(record: SandboxRecord): Promise<void> {
    const { bootId } = runtimeFacts(record);
    if (bootId !== "" && bootId !== this.#deps.bootId) {
      if (restartsAtAll(record)) return await this.#begin(record, "rebooted");
      await this.#change(record.id, ({ generation, status }) => {
        if (generation !== record.generation || !wantsToRun(status.phase)) return undefined;
        const message = "the machine was restarted; start the sandbox to continue with its files";
        return { status: withPhase(status, SandboxPhase.STOPPED, "MachineRestarted", message, this.#deps.clock.now()) };
      });
      return;
    }
    const message = "the sandbox's processes are gone and did not report an exit status";
    await this.fail(record.id, record.generation, "ComputeResourceMissing", message);
  }

  async #stop(record: SandboxRecord): Promise<void> {
    const { clock, driver, hosts } = this.#deps;
    await this.#endByRequest(record.id, STOP_GRACE_MS, "the sandbox is being stopped");
    // The main process keeps its grace: the next gateway goes on.
    if (this.#closed.signal.aborted) return;
    await driver.stop(record.id);
    await this.volumes.ended(record);
    hosts.unassign(record.id, "stopped");
    this.#forgetRun(record.id);
    await this.#change(record.id, ({ generation, status }) => {
      if (generation !== record.generation || status.phase !== SandboxPhase.STOPPING) return undefined;
      return { status: withPhase(status, SandboxPhase.STOPPED, "Stopped", "the sandbox was stopped", clock.now()) };
    });
    const message = "the sandbox was stopped";
    this.#deps.feeds.of(record.id).addEvent({ type: "Normal", reason: "Stopped", message }, clock.now());
  }

  /**
   * The main process has ended and is to run again: once its output was taken, its compute is given back as after any end,
   * and at the time that is stored the next generation begins. Repeatable up to the write that begins it.
   */
  async #restart(record: SandboxRecord): Promise<void> {
    const { clock, driver, hosts } = this.#deps;
    const { id, generation } = record;
    if (this.#draining.has(id)) return;
    const waiting = this.#restarts.get(id);
    if (waiting === undefined) {
      hosts.unassign(id, "ended");
      await driver.stop(id);
      this.#forgetRun(id, "restart");
    }
    // Never longer than the longest wait: the wall clock may have been set back.
    const leftMs = Math.min(timestampMs(record.status.nextRestartTime!) - clock.now(), RESTART_LAST_MS);
    if (leftMs <= 0 || waiting?.due === true) return await this.#begin(record, "ended");
    if (waiting !== undefined) return;
    const entry = { generation, due: false, timer: new AbortController() };
    this.#restarts.set(id, entry);
    clock.sleep(leftMs, { signal: entry.timer.signal, unref: true }).then(
      () => {
        entry.due = true;
        return this.request(id);
      },
      () => {},
    );
  }

  #forgetRestart(id: string): void {
    this.#restarts.get(id)?.timer.abort(DONE);
    this.#restarts.delete(id);
  }

  /** Begins the next generation of a sandbox that its restart policy starts again. */
  async #begin(record: SandboxRecord, why: "ended" | "rebooted"): Promise<void> {
    const { clock, feeds, log, storeNonce } = this.#deps;
    const begun = await this.#modify(record.id, (current) => {
      const { generation, status } = current;
      const wanted = why === "ended" ? restartPending(status) : wantsToRun(status.phase) && !restartPending(status);
      if (generation !== record.generation || !wanted) return undefined;
      return { patch: nextRun(current, why, clock.now()), also: [storeNonce(current, generation + 1n)] };
    });
    if (begun?.generation !== record.generation + 1n) return;
    this.#forgetRestart(record.id);
    this.#provisioning.get(record.id)?.abort();
    this.#provisioning.delete(record.id);
    const { restartCount } = begun.status;
    const because = why === "rebooted" ? "the machine was restarted; " : "";
    const repeated = record.status.exitCode === undefined && why === "ended";
    const message = repeated
      ? "the start that was cut off is repeated"
      : `${because}the main process is started again (restart ${restartCount})`;
    log.info({ [LogField.sandboxId]: record.id, restarts: restartCount }, message);
    feeds.of(record.id).addEvent({ type: "Normal", reason: "Restarted", message }, clock.now());
    await this.#run(begun);
  }

  /** A sandbox that has ended by itself: its compute is given back, its files stay. */
  async #release(record: SandboxRecord): Promise<void> {
    const { driver, hosts } = this.#deps;
    if (this.#draining.has(record.id)) return;
    hosts.unassign(record.id, "ended");
    await driver.stop(record.id);
    await this.volumes.ended(record);
    this.#forgetRun(record.id);
    if (!isEphemeral(record)) return;
    const changed = await this.#modify(record.id, (current) => {
      if (current.generation !== record.generation || !isTerminal(current.status.phase)) return undefined;
      const now = this.#deps.clock.now();
      const cancelled = this.#deps.store.operations.finishAll(record.id, "cancelled", now);
      return { patch: deletingPatch(current, now), also: [cancelled] };
    });
    if (changed?.status.phase === SandboxPhase.DELETING) await this.#delete(changed);
  }

  async #delete(record: SandboxRecord): Promise<void> {
    const { archives, driver, feeds, hosts, log, sessions, store } = this.#deps;
    hosts.unassign(record.id, "deleted");
    sessions.get(record.id)?.close();
    this.#forgetRun(record.id);
    this.volumes.forget(record.id);
    await driver.delete(record.id);
    if (runtimeFacts(record).stagedArchive) await archives.release(record.id);
    await store.write(store.sandboxes.remove(record.id, "any"), store.idBlocks.release(record.id));
    feeds.remove(record.id);
    sessions.notify(record.id);
    log.info({ [LogField.sandboxId]: record.id, [LogField.sandboxName]: record.name }, "sandbox deleted");
  }

  /** Asks the supervisor to end the workload, and waits until it did or the grace is over. */
  async #endByRequest(id: string, graceMs: number, reason: string): Promise<void> {
    const { clock, sessions } = this.#deps;
    const session = sessions.get(id);
    if (session === undefined || session.state !== "ready") return;
    const { promise, resolve } = Promise.withResolvers<void>();
    const stop = session.onState(() => {
      if (session.state === "closed") resolve();
    });
    const timer = new AbortController();
    const signal = AbortSignal.any([timer.signal, this.#closed.signal]);
    try {
      if (!session.send({ case: "end", value: create(EndSandboxSchema, { grace: toDuration(graceMs), reason }) }))
        return;
      const limit = clock.sleep(graceMs + STOP_REPORT_MS, { signal, unref: true }).catch(() => {});
      await Promise.race([promise, limit]);
    } finally {
      timer.abort(DONE);
      stop();
    }
  }

  #forgetRun(id: string, next?: "restart"): void {
    this.#provisioning.get(id)?.abort();
    this.#provisioning.delete(id);
    this.#draining.delete(id);
    this.#attachFailures.delete(id);
    this.#lastFailure.delete(id);
    if (next === "restart") this.#deps.attachments.nextRun(id);
    else this.#deps.attachments.reset(id);
    this.#deps.broker.rejectPending(
      id,
      unavailable("the sandbox has ended; nothing was started", {
        next: next === "restart" ? "Try again when it has been started again" : "Start it again",
      }),
    );
    this.#deps.sessions.notify(id);
  }

  /** Fails a start that takes too long. Armed once a generation. */
  #limitProvisioning(record: SandboxRecord): void {
    if (this.#provisioning.has(record.id)) return;
    const timer = new AbortController();
    this.#provisioning.set(record.id, timer);
    this.#deps.clock.sleep(PROVISIONING_LIMIT_MS, { signal: timer.signal, unref: true }).then(
      () => {
        this.#provisioning.delete(record.id);
        const cause = this.#lastFailure.get(record.id);
        const message = `the sandbox was not ready within ${PROVISIONING_LIMIT_MS / 1000} s`;
        const text = cause === undefined ? message : `${message}; the last attempt failed: ${cause}`;
        return this.fail(record.id, record.generation, "ProvisioningTimedOut", text);
      },
      () => {},
    );
  }

  /** A step failed: it is repeated, each time a little later, until it succeeds or somebody wants something else. */
  #retry(id: string, error: unknown): void {
    if (this.#closed.signal.aborted) return;
    const before = this.#retries.get(id);
    before?.cancel.abort();
    const attempt = (before?.attempt ?? 0) + 1;
    const cancel = new AbortController();
    this.#retries.set(id, { attempt, cancel });
    const waitMs = Math.min(RETRY_FIRST_MS * 2 ** (attempt - 1), RETRY_LAST_MS);
    this.#deps.log.warn(
      { [LogField.sandboxId]: id, err: error, attempt, retry_ms: waitMs },
      "sandbox operation failed",
    );
    this.#lastFailure.set(id, describeError(error));
    void this.#noteFailure(id, describeError(error)).catch(() => {});
    this.#deps.clock.sleep(waitMs, { signal: cancel.signal, unref: true }).then(
      () => this.request(id),
      () => {},
    );
  }

  /** Shows why a step does not get on while it is repeated. */
  async #noteFailure(id: string, message: string): Promise<void> {
    await this.#change(id, ({ status }) => {
      const reason = failedStepReason(status.phase);
      if (reason === undefined) return undefined;
      return {
        status: withCondition(status, { type: "Ready", status: "False", reason, message }, this.#deps.clock.now()),
      };
    });
  }

  /** A conditional change of the record; watchers are told. Undefined: the record is gone. */
  #change(id: string, patch: (record: SandboxRecord) => SandboxPatch | undefined): Promise<SandboxRecord | undefined> {
    return this.#modify(id, (current) => {
      const wanted = patch(current);
      return wanted === undefined ? undefined : { patch: wanted };
    });
  }

  /** As `#change`, with further commands of the same transaction. */
  async #modify(
    id: string,
    change: (record: SandboxRecord) => SandboxChange | undefined,
  ): Promise<SandboxRecord | undefined> {
    try {
      const record = await this.#deps.store.modifySandbox(id, change);
      this.#deps.feeds.of(id).changed();
      this.#deps.sessions.notify(id);
      return record;
    } catch (error) {
      if (isStoreError(error, "store_not_found")) return undefined;
      throw error;
    }
  }
}

/** Outside of the class: a function that is kept keeps everything that it could name. */
function assignmentTo(hostId: string, facts: AttachFacts): Assignment {
  const { id: sandboxId, generation } = facts.sandbox;
  return { hostId, sandboxId, generation, attach: (token) => attachMessage(facts, token) };
}

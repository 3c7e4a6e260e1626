import { join } from "node:path";
import { SandboxPhase } from "@openshell/api";
import { type Clock, escapeUntrusted, LogField } from "@openshell/base";
import type { ComputeDriver, DriverEvent } from "@openshell/drivers/driver.ts";
import type { Logger } from "pino";
import type { ListCursor, SandboxRecord, Store } from "../store/types.ts";
import type { SandboxController } from "./controller.ts";
import { RECOVERY_CONCURRENCY, RECOVERY_PAGE } from "./limits.ts";
import { isEphemeral } from "./runtime-record.ts";
import type { SandboxFeeds } from "./sandbox-feed.ts";
import type { SessionEvents } from "./session-events.ts";
import { isTerminal, wantsToRun } from "./status.ts";

export interface RecoveryDeps {
  readonly store: Store;
  readonly driver: ComputeDriver;
  readonly controller: SandboxController;
  readonly events: Pick<SessionEvents, "showDisconnected">;
  readonly log: Logger;
}

const LOST =
  "a sandbox that no record knows was ended and its folder set aside for 7 days (the newest 64 are kept): copy what is needed out of its home into another sandbox, or elsewhere, before then. Was an older database restored?";

/**
 * Takes up where the process before stopped: every record that is not at rest gets a run, and whatever the driver holds
 * without a record is ended, its files set aside: the database may be a backup from before they were made. Resolves when all of it has been asked for, not when it is done.
 */
export async function recover(deps: RecoveryDeps): Promise<void> {
  const { driver, controller, log } = deps;
  const held = new Map((await driver.list()).map((sandbox) => [sandbox.sandboxId, sandbox]));
  const work: string[] = [];
  for await (const record of allSandboxes(deps.store)) {
    const found = held.get(record.id);
    held.delete(record.id);
    const { phase } = record.status;
    const atRest =
      isTerminal(phase) && found?.running === undefined && !(isEphemeral(record) && phase !== SandboxPhase.STOPPED);
    if (atRest) continue;
    work.push(record.id);
    if (wantsToRun(phase)) void deps.events.showDisconnected(record.id, record.generation).catch(() => {});
  }
  const orphans = [...held.keys()].map((id) => async () => {
    try {
      const folder = await driver.setAside(id);
      // Its host ids stay its own while files of theirs exist.
      if (folder === undefined) await deps.store.write(deps.store.idBlocks.release(id));
      else log.warn({ [LogField.sandboxId]: id, folder, home: join(folder, "home") }, LOST);
    } catch (error) {
      log.warn({ [LogField.sandboxId]: id, err: error }, "cannot set aside a sandbox that no record knows");
    }
  });
  const steps = [...work.map((id) => () => controller.request(id)), ...orphans];
  void runLimited(steps, RECOVERY_CONCURRENCY);
}

async function* allSandboxes(store: Store): AsyncGenerator<SandboxRecord, void, void> {
  let after: ListCursor | undefined;
  for (;;) {
    const rows = await store.sandboxes.list({ limit: RECOVERY_PAGE, after });
    yield* rows;
    after = rows.at(-1);
    if (rows.length < RECOVERY_PAGE) return;
  }
}

async function runLimited(steps: readonly (() => Promise<void>)[], limit: number): Promise<void> {
  let next = 0;
  const worker = async (): Promise<void> => {
    for (let step = steps[next++]; step !== undefined; step = steps[next++]) await step();
  };
  await Promise.all(Array.from({ length: Math.min(limit, steps.length) }, worker));
}

/** A supervisor reports an exit status before its sandbox's end shows here; it gets this long to do so. */
const END_REPORT_MS = 1_000;

/** Follows the driver's reports of ended sandboxes until `signal` aborts. */
export async function watchDriver(deps: {
  readonly driver: ComputeDriver;
  readonly store: Store;
  readonly clock: Clock;
  readonly log: Logger;
  readonly controller: SandboxController;
  readonly feeds: SandboxFeeds;
  readonly signal: AbortSignal;
}): Promise<void> {
  const { driver, store, clock, log, controller, feeds, signal } = deps;
  const settle = async (sandboxId: string, generation: bigint): Promise<void> => {
    await clock.sleep(END_REPORT_MS, { signal, unref: true });
    const record = await store.sandboxes.byId(sandboxId);
    if (record?.generation !== generation || !wantsToRun(record.status.phase)) return;
    await controller.fail(
      sandboxId,
      generation,
      "SandboxEnded",
      "the sandbox's processes ended without reporting an exit status",
    );
  };
  const tell = ({ sandboxId, limit, times }: Extract<DriverEvent, { kind: "limit" }>): void => {
    const message = limitMessage(limit, times);
    log.info({ [LogField.sandboxId]: sandboxId, limit, times }, message);
    feeds.of(sandboxId).addEvent({ type: "Warning", reason: "LimitReached", message }, clock.now());
  };
  while (!signal.aborted) {
    try {
      for await (const event of driver.watch(signal)) {
        const { sandboxId, generation } = event;
        if (event.kind === "ended") void settle(sandboxId, generation).catch(() => {});
        else if (event.kind === "limit") tell(event);
        else if (event.kind === "volume_redirect") {
          void controller.fail(sandboxId, generation, "VolumeTampered", redirectMessage(event.path)).catch(() => {});
        } else
          void controller.fail(sandboxId, generation, "DiskLimitExceeded", diskLimitMessage(event)).catch(() => {});
      }
    } catch (error) {
      if (signal.aborted) return;
      log.warn({ err: error }, "the driver's watch failed");
    }
    await clock.sleep(END_REPORT_MS, { signal, unref: true }).catch(() => {});
  }
}

function limitMessage(limit: "processes" | "memory", times: number): string {
  const count = times === 1 ? "once" : `${times} times`;
  return limit === "memory"
    ? `memory: the kernel ended a process ${count}, since the sandbox had used all it may; give it more with --memory`
    : `processes: starting one was refused ${count}, since the sandbox has as many as it may`;
}

function redirectMessage(path: string): string {
  return `HIGH: it made ${escapeUntrusted(path)}, which has git outside take configuration and hooks from where the agent says; the file was moved aside and the sandbox stopped. Read what it left before you run git there`;
}

/** What a sandbox took and what may be done; the conditions of a sandbox show it. */
function diskLimitMessage({
  usedBytes,
  limitBytes,
}: {
  readonly usedBytes: number;
  readonly limitBytes: number;
}): string {
  const gib = (bytes: number) => `${(bytes / 2 ** 30).toFixed(1)} GiB`;
  return `the sandbox's files take ${gib(usedBytes)} or more of ${gib(limitBytes)} and it was stopped. Start it and remove files within 30 s, raise [local] sandbox_disk_limit, or delete it`;
}

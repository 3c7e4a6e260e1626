import { SandboxPhase } from "@openshell/api";
import { type Clock, escapeUntrusted, LogField } from "@openshell/base";
import type { ComputeDriver, PlantedFiles } from "@openshell/drivers/driver.ts";
import type { Logger } from "pino";
import type { SandboxPatch, SandboxRecord } from "../store/types.ts";
import type { SandboxFeeds } from "./sandbox-feed.ts";
import { MAX_MESSAGE, wantsToRun, withCondition } from "./status.ts";
import { localVolumes } from "./volumes.ts";

/** Condition that is false while start-up files of the owner's in a volume are not as they were. */
export const VOLUME_CONDITION = "VolumeStartupFiles";
/** Who asks for a running sandbox sees what was found at most so long ago, milliseconds; or so many times what the look took. */
const BELIEVED_MS = 100;
const BELIEVED_FACTOR = 10;
/** Files that a message names. */
const NAMED = 5;

export interface VolumeReviewDeps {
  readonly driver: Pick<ComputeDriver, "plantedFiles">;
  readonly clock: Clock;
  readonly log: Logger;
  readonly feeds: SandboxFeeds;
  readonly change: (id: string, patch: (record: SandboxRecord) => SandboxPatch | undefined) => Promise<unknown>;
}

interface Look {
  readonly believedUntil: number;
  readonly generation: bigint;
  readonly ended: boolean;
}

/**
 * Looks for what sandboxes left in their volumes that the owner's programs would run, and what of them it can reach there, and says so: a condition of the
 * record, a HIGH event, a line of the log. When somebody asks for the sandbox, and once more when nothing of it runs.
 */
export class VolumeReview {
  readonly #deps: VolumeReviewDeps;
  /** The last look at each sandbox; `ended`: nothing of that generation ran any more. */
  readonly #looked = new Map<string, Look>();
  readonly #running = new Map<string, Promise<void>>();

  constructor(deps: VolumeReviewDeps) {
    this.#deps = deps;
  }

  /** Before a sandbox is shown; true when its record may have changed. */
  async asked(record: SandboxRecord): Promise<boolean> {
    if (record.generation === 0n || !hasVolume(record)) return false;
    const { phase } = record.status;
    // Nothing of it has run yet.
    if (wantsToRun(phase) && phase !== SandboxPhase.READY) return false;
    const last = this.#looked.get(record.id);
    const fresh =
      last?.generation === record.generation &&
      (last.ended || (wantsToRun(phase) && this.#deps.clock.monotonic() < last.believedUntil));
    if (!fresh) await this.#once(record, false);
    return !fresh;
  }

  /** After its compute was released. */
  async ended(record: SandboxRecord): Promise<void> {
    if (record.generation === 0n || !hasVolume(record)) return;
    if (this.#looked.get(record.id)?.ended === true) return;
    await this.#running.get(record.id);
    await this.#once(record, true);
  }

  /** A new run begins, or the sandbox is deleted. */
  forget(id: string): void {
    this.#looked.delete(id);
  }

  #once(record: SandboxRecord, ended: boolean): Promise<void> {
    const running = this.#running.get(record.id);
    if (running !== undefined) return running;
    const work = this.#look(record, ended)
      // What cannot be looked at must not keep a sandbox from being shown, stopped or deleted.
      .catch((error: unknown) =>
        this.#deps.log.warn({ [LogField.sandboxId]: record.id, err: error }, "volumes not looked at"),
      )
      .finally(() => this.#running.delete(record.id));
    this.#running.set(record.id, work);
    return work;
  }

  async #look(record: SandboxRecord, ended: boolean): Promise<void> {
    const { driver, clock, feeds, log, change } = this.#deps;
    const { id, generation } = record;
    const since = clock.monotonic();
    const found = await driver.plantedFiles(id);
    const now = clock.monotonic();
    const believedUntil = now + Math.max(BELIEVED_MS, BELIEVED_FACTOR * (now - since));
    this.#looked.set(id, { believedUntil, generation, ended });
    const planted = found.files.length > 0;
    const message = planted ? plantedMessage(found) : "start-up files in its volumes are as they were";
    let told = false;
    await change(id, ({ status }) => {
      const before = status.conditions.find(({ type }) => type === VOLUME_CONDITION);
      // Messages are cut to their limit when they are stored.
      if (before === undefined ? !planted : before.message === message.slice(0, MAX_MESSAGE)) return undefined;
      told = planted;
      const facts = planted
        ? ({ status: "False", reason: "StartupFilesChanged" } as const)
        : ({ status: "True", reason: "Unchanged" } as const);
      return { status: withCondition(status, { type: VOLUME_CONDITION, message, ...facts }, clock.now()) };
    });
    if (!told) return;
    log.warn(
      { [LogField.sandboxId]: id, files: found.files.length + found.more },
      "start-up files in its volumes changed",
    );
    feeds.of(id).addEvent({ type: "Warning", reason: "StartupFilesChanged", message }, clock.now());
  }
}

function hasVolume(record: SandboxRecord): boolean {
  const config = record.spec.template?.driverConfig;
  return config?.local !== undefined && localVolumes(config).volumes.length > 0;
}

/** Names come from the agent. */
function plantedMessage({ files, more, complete }: PlantedFiles): string {
  const named = files.slice(0, NAMED).map(({ path, reason }) => `${escapeUntrusted(path, 160)} (${reason})`);
  const rest = files.length - named.length + more;
  const others = rest > 0 ? `, and ${rest} more` : "";
  const partly = complete ? "" : "; the volumes are too large to be looked through, so there may be others";
  return `HIGH: what your programs run by themselves, or listen on, came or changed in a volume since the sandbox started: ${named.join(", ")}${others}${partly}. Read them before you work in that folder`;
}

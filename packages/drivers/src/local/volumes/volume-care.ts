import type { RootStep } from "@openshell/boundary/local/plan.ts";
import { z } from "zod";
import type { VolumeRequest } from "../../driver.ts";
import type { VolumePlan } from "../volumes.ts";
import { type Hold, makeHolds, removeHolds } from "./holds.ts";

export const volumeRecordSchema = z.object({
  /** Stand-ins in the volumes that this sandbox covers, its own and those of sandboxes before it. */
  holds: z.array(z.object({ path: z.string(), kind: z.enum(["folder", "file"]), id: z.string() })),
  /** Host folders that are watched for redirections. */
  gitFolders: z.array(z.string()),
  /** Host folders in which start-up files are looked for. */
  writable: z.array(z.string()),
  /** Host folders of every access: sockets in them can be connected to. */
  folders: z.array(z.string()).default([]),
  /** Sockets in them that were covered at the start. */
  covered: z.array(z.string()).default([]),
  /** Of the sandbox's first start: what changed before is its owner's. Milliseconds after the epoch. */
  sinceMs: z.number(),
});

/** What a sandbox's volumes need after their launch; part of its launch record. */
export type VolumeRecord = Readonly<z.infer<typeof volumeRecordSchema>>;

export const NO_VOLUMES: VolumeRecord = {
  holds: [],
  gitFolders: [],
  writable: [],
  folders: [],
  covered: [],
  sinceMs: 0,
};

/**
 * Stand-ins of the sandboxes that run. Two on the same folder cover the same one, and it goes with the last of them: its
 * removal would uncover the place in the other.
 */
export class VolumeCare {
  readonly #running = new Map<string, readonly Hold[]>();

  /** A sandbox that runs. */
  follow(sandboxId: string, { holds }: VolumeRecord): void {
    if (holds.length > 0) this.#running.set(sandboxId, holds);
  }

  /** Makes what is missing for a launch. The steps are the plan's without those whose place could not be made. */
  prepare(
    sandboxId: string,
    plan: VolumePlan,
    requests: readonly VolumeRequest[],
    before: VolumeRecord | undefined,
  ): { readonly record: VolumeRecord; readonly steps: readonly RootStep[] } {
    const made = makeHolds(plan.holds);
    const there = new Set(made.map(({ path }) => path));
    const failed = new Set(plan.holds.map(({ path }) => path).filter((path) => !there.has(path)));
    const steps = plan.steps.filter((step) => !(step.kind === "volume" && failed.has(step.source)));
    const sources = new Set(steps.flatMap((step) => (step.kind === "volume" ? [step.source] : [])));
    const own = made.filter((hold) => hold.made).map(({ path, kind, id }) => ({ path, kind, id }));
    const record: VolumeRecord = {
      holds: [
        ...own,
        ...this.#others(sandboxId).filter(({ path }) => sources.has(path) && !own.some((one) => one.path === path)),
      ],
      gitFolders: [...plan.gitFolders],
      writable: requests.filter(({ access }) => access === "rw").map(({ source }) => source),
      folders: requests.map(({ source }) => source),
      covered: [...plan.covered],
      // The file system's clock is coarser and never ahead.
      sinceMs: before === undefined || before.sinceMs === 0 ? Date.now() + 1 : before.sinceMs,
    };
    this.follow(sandboxId, record);
    return { record, steps };
  }

  /** The sandbox's processes are gone: what nobody else covers is removed. */
  ended(sandboxId: string, { holds }: VolumeRecord): void {
    this.#running.delete(sandboxId);
    const needed = new Set(this.#others(sandboxId).map(({ path }) => path));
    removeHolds(holds.filter(({ path }) => !needed.has(path)));
  }

  #others(sandboxId: string): readonly (Hold & { readonly id: string })[] {
    return [...this.#running].flatMap(([id, holds]) =>
      id === sandboxId ? [] : holds.flatMap((hold) => (hold.id === undefined ? [] : [{ ...hold, id: hold.id }])),
    );
  }
}

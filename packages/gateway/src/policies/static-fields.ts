import type { FilesystemPolicy, LandlockPolicy, ProcessPolicy, SandboxPolicy } from "@openshell/api";
import type { FieldViolation } from "@openshell/api/violations.ts";

/**
 * What a new policy changes that a sandbox takes up only when it starts. Growing the filesystem lists is accepted and
 * needs a stop and start; everything else that start-up fixed must stay.
 */
export interface StaticFieldChanges {
  readonly violations: readonly FieldViolation[];
  /** Paths that are saved but not in force before the next start. */
  readonly pendingPaths: readonly string[];
}

/** Compares a new policy with the one that the sandbox was created with. */
export function staticFieldChanges(baseline: SandboxPolicy, next: SandboxPolicy): StaticFieldChanges {
  const violations: FieldViolation[] = [];
  const fixed = "is fixed when the sandbox starts; recreate the sandbox to change it";
  const same = (name: string, equal: boolean): void => {
    if (!equal) violations.push({ field: `policy.${name}`, description: fixed });
  };
  same("landlock", sameLandlock(baseline.landlock, next.landlock));
  same("process", sameProcess(baseline.process, next.process));
  const pendingPaths: string[] = [];
  const before = baseline.filesystem;
  const after = next.filesystem;
  if (before === undefined && after !== undefined) {
    // Without a section the work folder alone is open; naming it adds paths.
    same("filesystem.include_workdir", after.includeWorkdir);
    pendingPaths.push(...after.readOnly, ...after.readWrite);
  } else if (before !== undefined && after === undefined) {
    violations.push({ field: "policy.filesystem", description: "cannot be removed from a running sandbox" });
  } else if (before !== undefined && after !== undefined) {
    same("filesystem.include_workdir", before.includeWorkdir === after.includeWorkdir);
    for (const list of ["readOnly", "readWrite"] as const) {
      const removed = before[list].filter((path) => !after[list].includes(path));
      if (removed.length > 0) {
        const name = list === "readOnly" ? "read_only" : "read_write";
        violations.push({
          field: `policy.filesystem.${name}`,
          description: `${removed.join(", ").slice(0, 160)} cannot be removed from a running sandbox`,
        });
      }
    }
    pendingPaths.push(...added(before, after));
  }
  return { violations, pendingPaths };
}

function added(before: FilesystemPolicy, after: FilesystemPolicy): readonly string[] {
  return (["readOnly", "readWrite"] as const).flatMap((list) =>
    after[list].filter((path) => !before[list].includes(path)),
  );
}

/** An absent section equals one with neutral values only: both say nothing. */
function sameLandlock(a: LandlockPolicy | undefined, b: LandlockPolicy | undefined): boolean {
  const effective = (section: LandlockPolicy | undefined) => section?.compatibility || "best_effort";
  return effective(a) === effective(b);
}

function sameProcess(a: ProcessPolicy | undefined, b: ProcessPolicy | undefined): boolean {
  return (a?.runAsUser ?? "") === (b?.runAsUser ?? "") && (a?.runAsGroup ?? "") === (b?.runAsGroup ?? "");
}

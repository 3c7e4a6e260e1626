import { CliError } from "../errors.ts";
import { awaitsRestart, notReadyReason, type SandboxView } from "./sandbox.ts";

/** Throws for a sandbox in which nothing runs: what happened to it, and what brings it back. `again`: what to repeat then. */
export function refuseEnded(view: SandboxView, again: string): void {
  const { name, phase, status } = view;
  if (awaitsRestart(view)) return;
  const reason = notReadyReason(view);
  const why = reason === undefined ? "" : ` (${reason})`;
  const start = `Start it with \`openshell sandbox start ${name}\``;
  const logs = `\`openshell logs ${name}\` shows what it did`;
  switch (phase) {
    case "Stopped":
    case "Stopping":
      throw new CliError(`sandbox ${name} is ${phase.toLowerCase()}`, {
        code: "sandbox_stopped",
        next: `${start}, and ${again}`,
      });
    case "Completed":
      throw new CliError(
        `the main process of sandbox ${name} has ended with status ${Number(status["exitCode"] ?? 0)}`,
        {
          code: "main_process_ended",
          next: `${start} to run it again; ${logs}`,
        },
      );
    case "Error":
      throw new CliError(`sandbox ${name} has failed${why}`, {
        code: "sandbox_failed",
        next: `${logs}. ${start} to run it again`,
      });
    case "Deleting":
      throw new CliError(`sandbox ${name} is being removed`, { code: "sandbox_removed", next: "Create another one" });
  }
}

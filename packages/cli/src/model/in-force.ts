import type { Context } from "../context.ts";
import { cell } from "../output/terminal.ts";
import type { Json } from "../transport/unary.ts";
import { isDormant } from "./dormant.ts";
import { object, type SandboxView, sandboxView, text } from "./sandbox.ts";

/** Whether a sandbox has taken up what is wanted: policy and settings, its own and the gateway's. */
export interface Standing {
  readonly view: SandboxView;
  /** `yes`, `not yet`, or a word and why. */
  readonly inForce: string;
}

/** `config`: the answer of GetSandboxConfig. */
export async function standing(context: Context, name: string, config: Json): Promise<Standing> {
  const { sandbox } = await context.call("GetSandbox", { workspaceScope: context.scope, name });
  const view = sandboxView(sandbox);
  const { state, configRevision, error } = object(view.status["configurationAdmission"]);
  const accepted = state === "CONFIGURATION_ADMISSION_STATE_ACCEPTED";
  // A start that is held was refused before anything had a revision.
  const judged =
    text(configRevision) === ""
      ? state === "CONFIGURATION_ADMISSION_STATE_REJECTED"
      : text(configRevision) === text(config["configRevision"]);
  const current = view.conditions.find(({ type }) => type === "PolicyCurrent");
  const inForce = isDormant(view.phase)
    ? `no, at the next start: the sandbox is ${view.phase.toLowerCase()}`
    : !judged
      ? "not yet"
      : !accepted
        ? `no: ${text(error)}`
        : current?.["reason"] === "Degraded" && current["status"] === "False"
          ? "in part, see openshell sandbox get"
          : "yes";
  return { view, inForce };
}

/** After a change that was stored: a word where the sandbox has not taken it up. That nobody can say is no failure of the change. */
export async function sayUnlessInForce(context: Context, sandbox: string): Promise<void> {
  try {
    const config = await context.call("GetSandboxConfig", { workspaceScope: context.scope, name: sandbox });
    const { inForce } = await standing(context, sandbox, config);
    if (inForce === "yes" || inForce.startsWith("in part")) return;
    await context.say(`· In force: ${cell(inForce)}.`);
    await context.say(`  ${context.err.bold("next:")} openshell policy get ${cell(sandbox)} says when it is`);
  } catch {
    // It is stored.
  }
}

import type { Context } from "../context.ts";
import { cell } from "../output/terminal.ts";
import type { Json } from "../transport/unary.ts";
import { isDormant } from "./dormant.ts";
import { missingPart, object, type SandboxView, sandboxView, text } from "./sandbox.ts";

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
  return { view, inForce: inForceWord(view, text(config["configRevision"])) };
}

function inForceWord(view: SandboxView, wanted: string): string {
  if (isDormant(view.phase)) return `no, at the next start: the sandbox is ${view.phase.toLowerCase()}`;
  const { state, configRevision, error } = object(view.status["configurationAdmission"]);
  const revision = text(configRevision);
  // A start that is held was refused before anything had a revision.
  const judged = revision === "" ? state === "CONFIGURATION_ADMISSION_STATE_REJECTED" : revision === wanted;
  if (!judged) return "not yet";
  if (state !== "CONFIGURATION_ADMISSION_STATE_ACCEPTED") return `no: ${text(error)}`;
  return missingPart(view) === undefined ? "yes" : "in part, see openshell sandbox get";
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

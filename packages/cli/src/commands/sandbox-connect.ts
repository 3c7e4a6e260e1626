import type { Args, CommandSpec } from "../args.ts";
import type { Context } from "../context.ts";
import { EXIT } from "../errors.ts";
import { refuseEnded } from "../model/ended.ts";
import { rememberSandbox, sandboxName } from "../model/last-sandbox.ts";
import { type SandboxView, sandboxView } from "../model/sandbox.ts";
import { type AttachOptions, attach, windowSize } from "../terminal/attach.ts";
import { detachedLine } from "../terminal/detach-keys.ts";
import { Interruption } from "../terminal/interruption.ts";

export const spec: CommandSpec = {
  path: ["sandbox", "connect"],
  summary: "join the terminal of a sandbox, or open a shell in it",
  positionals: [{ name: "NAME", names: "sandboxes" }],
  flags: [
    { long: "main", conflicts: ["shell"], help: "join the main process, also one without a terminal" },
    { long: "shell", help: "open a login shell of its own" },
  ],
  about: [
    "Joins the main process where that has a terminal (a sandbox created without a command has a login shell in one), with what it",
    "has written so far; else opens a login shell. Without NAME the sandbox that was used last.",
    "Ctrl-D, or Ctrl-P and then Ctrl-Q, leaves a main process and lets it run on. A shell of its own ends with Ctrl-D.",
    "The exit status is that of the process; 0 after leaving it.",
  ],
  examples: ["openshell sandbox connect dev", "openshell sandbox connect dev --shell"],
};

/** The best shell that is there. */
const LOGIN_SHELL = ["/bin/sh", "-c", "if [ -x /bin/bash ]; then exec /bin/bash -l; fi; exec /bin/sh -l"];

export async function run(context: Context, args: Args): Promise<number> {
  const name = await sandboxName(context, args.positionals[0]);
  const answer = await context.call("GetSandbox", { workspaceScope: context.scope, name });
  const view = sandboxView(answer["sandbox"]);
  refuseEnded(view, "connect again");
  const { endpoint } = await context.ensureGateway();
  rememberSandbox(context, name);
  using interruption = Interruption.listen();
  const own = { endpoint, signal: interruption.atOnce };
  const main = args.has("main") || (!args.has("shell") && view.spec["tty"] === true);
  const options = main ? toMain(context, view) : toShell(context, view);
  try {
    const result = await attach({ ...own, ...options }, context.surroundings);
    if (result.kind === "exit") return result.code;
    await context.say(`\r\n${detachedLine(name)}`);
    return EXIT.ok;
  } catch (error) {
    if (interruption.signalled === undefined) throw error;
    if (main) await context.say(`openshell: left ${name}, which runs on`);
    return interruption.exitCode(EXIT.failure);
  }
}

type Wanted = Omit<AttachOptions, "endpoint" | "signal">;

function toMain(context: Context, view: SandboxView): Wanted {
  const tty = view.spec["tty"] === true;
  return {
    start: { workspace: context.workspace, sandbox: view.name, command: [], tty, ...sizeFor(context, tty) },
    mainProcess: true,
    tty,
    detachable: true,
    inputOutlivesUs: true,
    recover: () => context.recoverGateway(),
  };
}

function toShell(context: Context, view: SandboxView): Wanted {
  const { stdin, stdout } = context.surroundings;
  const tty = stdin.isTTY === true && stdout.isTTY === true;
  const start = { workspace: context.workspace, sandbox: view.name, command: LOGIN_SHELL, noLoginShell: true };
  return {
    start: { ...start, tty, ...sizeFor(context, tty) },
    mainProcess: false,
    tty,
    detachable: false,
  };
}

function sizeFor(context: Context, tty: boolean): { readonly cols?: number; readonly rows?: number } {
  return tty ? windowSize(context.surroundings.stdout) : {};
}

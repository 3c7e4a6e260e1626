import type { Args, CommandSpec } from "../args.ts";
import { type Context, pairs, wholeNumber } from "../context.ts";
import { EXIT, errorLines, usageError } from "../errors.ts";
import { checkVariables } from "../model/environment.ts";
import { rememberSandbox, sandboxName } from "../model/last-sandbox.ts";
import { attach, windowSize } from "../terminal/attach.ts";
import { Interruption } from "../terminal/interruption.ts";
import { RpcError } from "../transport/rpc-error.ts";

export const spec: CommandSpec = {
  path: ["sandbox", "exec"],
  summary: "run a command in a sandbox",
  positionals: [{ name: "SANDBOX", names: "sandboxes" }],
  trailing: "separated",
  trailingRequired: true,
  flags: [
    {
      long: "name",
      short: "n",
      value: "SANDBOX",
      names: "sandboxes",
      help: "the sandbox (default: the one used last)",
    },
    { long: "workdir", value: "PATH", help: "folder inside to start in" },
    { long: "timeout", value: "SECONDS", help: "end the command after so long, with status 124 (default: 0, none)" },
    { long: "env", value: "KEY=VALUE", many: true, help: "variable of the command" },
    { long: "tty", help: "give the command a terminal" },
    { long: "no-tty", help: "give it pipes (the default)" },
    { long: "no-login-shell", help: "run it directly, without the profile of a login shell" },
  ],
  about: ["The exit status is the command's own; 128 + N when signal N ended it."],
  examples: ["openshell sandbox exec dev -- ls -la", "openshell sandbox exec dev --tty -- bash"],
};

/** A year; anything longer is a mistake. */
const LONGEST_TIMEOUT_SECONDS = 366 * 86_400;

export async function run(context: Context, args: Args): Promise<number> {
  const positional = args.positionals[0];
  const option = args.value("name");
  if (positional !== undefined && option !== undefined)
    throw usageError("the sandbox is named twice", "Leave out --name");
  const name = await sandboxName(context, positional ?? option);
  const environment = pairs(args.values("env"), "env");
  checkVariables(Object.keys(environment));
  const timeoutSeconds = wholeNumber(args.value("timeout"), "timeout", 0, LONGEST_TIMEOUT_SECONDS) ?? 0;
  const workdir = args.value("workdir");
  const tty = args.either("tty") === true;
  const target = await context.ensureGateway();
  using interruption = Interruption.listen();
  try {
    const result = await attach(
      {
        endpoint: target.endpoint,
        start: {
          workspace: context.workspace,
          sandbox: name,
          command: args.command,
          environment,
          timeoutSeconds,
          tty,
          noLoginShell: args.has("no-login-shell"),
          ...(workdir === undefined ? {} : { workdir }),
          ...(tty ? windowSize(context.surroundings.stdout) : {}),
        },
        mainProcess: false,
        tty,
        detachable: false,
        signal: interruption.atOnce,
        recover: () => context.recoverGateway(),
      },
      context.surroundings,
    );
    rememberSandbox(context, name);
    if (result.kind !== "exit") return EXIT.ok;
    if (result.code === EXIT.notFound && target.kind === "embedded") await explainNotFound(context, args.command);
    return result.code;
  } catch (error) {
    // The gateway ends the command when its caller leaves.
    if (interruption.signalled !== undefined) return interruption.exitCode(EXIT.failure);
    if (error instanceof RpcError && error.code === "failed_precondition") await explainEnded(context, name);
    throw error;
  }
}

/** Throws what is to be done with a sandbox in which nothing runs; returns where that is not what went wrong. */
async function explainEnded(context: Context, name: string): Promise<void> {
  const [{ refuseEnded }, { sandboxView }] = await Promise.all([
    import("../model/ended.ts"),
    import("../model/sandbox.ts"),
  ]);
  const answer = await context.call("GetSandbox", { workspaceScope: context.scope, name }).catch(() => undefined);
  if (answer !== undefined) refuseEnded(sandboxView(answer["sandbox"]), "try again");
}

/** Status 127: where the program is on this machine, if it is there and not inside. */
async function explainNotFound(context: Context, command: readonly string[]): Promise<void> {
  const { notFoundError } = await import("../model/not-found.ts");
  const error = notFoundError(command, EXIT.notFound, false, context.env, [], true);
  for (const line of error === undefined ? [] : errorLines(error, context.err.bold)) await context.say(line);
}

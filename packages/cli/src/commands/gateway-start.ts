import { runningGateway } from "@openshell/base/gateway-record.ts";
import type { Args, CommandSpec } from "../args.ts";
import type { Context } from "../context.ts";
import { CliError, EXIT } from "../errors.ts";
import { needsStart } from "../gateway/record.ts";
import { gatewayEnvironment, gatewayProgram, startGateway } from "../gateway/start.ts";
import { NAME_FLAG, ownGateway } from "../model/own-gateway.ts";

export const spec: CommandSpec = {
  path: ["gateway", "start"],
  summary: "start the gateway",
  flags: [NAME_FLAG, { long: "foreground", help: "run it here until it is interrupted; sandboxes outlive it" }],
  about: [
    "Other commands start the gateway by themselves. One that was started by this command is not replaced when the build changes.",
  ],
  examples: ["openshell gateway start", "openshell gateway start --foreground"],
};

/** Sets limits and becomes the gateway. */
const PREPARE = 'ulimit -c 0 && umask 077 && exec "$@"';

export async function run(context: Context, args: Args): Promise<number> {
  const target = ownGateway(context);
  if (args.has("foreground")) return foreground(context, target.name);
  const reason = needsStart(target.paths) ?? { kind: "not-running" as const };
  const started = await startGateway(target, reason, context, { auto: false, quiet: true });
  const record = runningGateway(target.paths);
  if (record === undefined)
    throw new CliError("the gateway ended right after its start", { next: `See ${target.paths.logs}` });
  await context.success(
    `Gateway ${target.name} ${started ? "started" : "runs already"} (pid ${record.pid}, ${record.endpoint}).`,
  );
  return EXIT.ok;
}

function foreground(context: Context, name: string): Promise<number> {
  const { spawn } = process.getBuiltinModule("node:child_process");
  const argv = [process.execPath, "--disable-sigusr1", gatewayProgram(context.env), "serve", "--name", name];
  const child = spawn("/bin/sh", ["-c", PREPARE, "openshell", ...argv], {
    stdio: ["ignore", "inherit", "inherit"],
    env: gatewayEnvironment(context.env),
  });
  // Ctrl-C reaches the gateway by itself, being of the same process group; these come to this process alone.
  for (const signal of ["SIGTERM", "SIGHUP"] as const) process.on(signal, () => child.kill("SIGTERM"));
  process.on("SIGINT", () => {});
  return new Promise((resolve, reject) => {
    child.once("error", reject);
    child.once("exit", (code) => resolve(code ?? EXIT.failure));
  });
}

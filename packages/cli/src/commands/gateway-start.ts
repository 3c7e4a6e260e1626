import { runningGateway } from "@openshell/base/gateway-record.ts";
import type { Args, CommandSpec } from "../args.ts";
import type { Context } from "../context.ts";
import { CliError, EXIT } from "../errors.ts";
import { needsStart } from "../gateway/record.ts";
import { GATEWAY_NODE_OPTIONS, gatewayEnvironment, gatewayProgram, startGateway } from "../gateway/start.ts";
import { NAME_FLAG, ownGateway } from "../model/own-gateway.ts";

export const spec: CommandSpec = {
  path: ["gateway", "start"],
  summary: "start the gateway",
  flags: [
    NAME_FLAG,
    { long: "foreground", help: "run it here until it is interrupted; sandboxes outlive it" },
    {
      long: "service",
      conflicts: ["foreground"],
      help: "make it a systemd service that starts with the session, for root with the machine",
    },
  ],
  about: [
    "Other commands start the gateway by themselves. One that was started by this command is not replaced when the build changes; a service is when --service is given again.",
    "--service writes openshell-gateway-NAME.service, enables it and starts it; a failed gateway is restarted, and sandboxes outlive that. `openshell gateway stop --service` removes it.",
  ],
  examples: ["openshell gateway start", "openshell gateway start --foreground", "openshell gateway start --service"],
};

/** Sets limits and becomes the gateway. */
const PREPARE = 'ulimit -c 0 && umask 077 && exec "$@"';

export async function run(context: Context, args: Args): Promise<number> {
  const target = ownGateway(context);
  if (args.has("foreground")) return foreground(context, target.name);
  if (args.has("service")) {
    const { startService } = await import("../gateway/service.ts");
    await startService(target, context);
    return EXIT.ok;
  }
  const reason = needsStart(target.paths) ?? { kind: "not-running" as const };
  const started = await startGateway(target, reason, context, { auto: false, quiet: true });
  const record = runningGateway(target.paths);
  if (record === undefined)
    throw new CliError("the gateway ended right after its start", {
      code: "gateway_start_failed",
      next: `See ${target.paths.logs}`,
    });
  await context.success(
    `Gateway ${target.name} ${started ? "started" : "runs already"} (pid ${record.pid}, ${record.endpoint}).`,
  );
  return EXIT.ok;
}

/** This process becomes the gateway, so that whoever started it signals the gateway itself. */
function foreground(context: Context, name: string): never {
  const options = ["--disable-sigusr1", ...GATEWAY_NODE_OPTIONS];
  const argv = [process.execPath, ...options, gatewayProgram(context.env), "serve", "--name", name];
  return process.execve!("/bin/sh", ["sh", "-c", PREPARE, "openshell", ...argv], gatewayEnvironment(context.env));
}

import { readGatewayRecord, runningGateway } from "@openshell/base/gateway-record.ts";
import type { Args, CommandSpec } from "../args.ts";
import type { Context } from "../context.ts";
import { EXIT } from "../errors.ts";
import { localStop } from "../gateway/local-control.ts";
import { STOP_TIMEOUT_MS, STOP_WITH_SANDBOXES_TIMEOUT_MS, waitForEnd } from "../gateway/stop.ts";
import { NAME_FLAG, ownGateway } from "../model/own-gateway.ts";
import { Progress } from "../output/progress.ts";
import { UnreachableError } from "../transport/unreachable.ts";

export const spec: CommandSpec = {
  path: ["gateway", "stop"],
  summary: "stop the gateway",
  flags: [
    NAME_FLAG,
    {
      long: "sandboxes",
      value: "WHAT",
      choices: ["refuse", "keep", "stop"],
      help: "running sandboxes: refuse to stop (default), keep them running, or stop them first",
    },
    { long: "service", help: "remove the systemd service that `gateway start --service` made, too" },
  ],
  about: ["Sandboxes that are kept are taken over by the next gateway. They never lose their network limits."],
  examples: ["openshell gateway stop", "openshell gateway stop --sandboxes keep", "openshell gateway stop --service"],
};

export async function run(context: Context, args: Args): Promise<number> {
  const target = ownGateway(context);
  await stop(context, args, target);
  if (args.has("service")) {
    const { removeService } = await import("../gateway/service.ts");
    await removeService(target, context);
  }
  return EXIT.ok;
}

async function stop(
  context: Context,
  args: Args,
  { name, paths, endpoint }: ReturnType<typeof ownGateway>,
): Promise<void> {
  const record = runningGateway(paths);
  if (record === undefined) {
    const crashed = readGatewayRecord(paths) !== undefined ? " (the last one did not end in order)" : "";
    await context.say(`· Gateway ${name} is not running${crashed}.`);
    return;
  }
  const sandboxes = args.value("sandboxes") ?? "refuse";
  using progress = Progress.start(context.surroundings.stderr, context.err, "Stopping the gateway");
  try {
    if (endpoint.kind === "unix") await localStop(endpoint, sandboxes);
  } catch (error) {
    // A live process that does not answer on its socket is about to end, or hangs: waiting tells which.
    if (!(error instanceof UnreachableError)) throw error;
  }
  await waitForEnd(paths, record, sandboxes === "stop" ? STOP_WITH_SANDBOXES_TIMEOUT_MS : STOP_TIMEOUT_MS);
  progress.stop();
  await context.success(`Gateway ${name} stopped${sandboxes === "keep" ? "; sandboxes keep running" : ""}.`);
}

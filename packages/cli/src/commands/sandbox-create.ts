import type { Args, CommandSpec } from "../args.ts";
import { type Context, OUTPUT_FLAG, wholeNumber } from "../context.ts";
import { CliError, codeOf, EXIT, usageError } from "../errors.ts";
import { secretLooking } from "../model/environment.ts";
import { rememberSandbox } from "../model/last-sandbox.ts";
import { awaitsRestart, hasRun, object, sandboxObject, sandboxView } from "../model/sandbox.ts";
import { limitSeconds, waitForPhase, watchSlowStart } from "../model/wait.ts";
import { LOGIN_SHELL, volumesOf, WORKLOAD_FLAGS, wantsTty, workloadRequest } from "../model/workload.ts";
import { Progress } from "../output/progress.ts";
import { cell } from "../output/terminal.ts";
import { attach, windowSize } from "../terminal/attach.ts";
import { detachedLine } from "../terminal/detach-keys.ts";
import { Interruption } from "../terminal/interruption.ts";
import { LostError } from "../terminal/resume.ts";
import { DELETE_TIMEOUT_MS } from "../transport/limits.ts";
import { RpcError } from "../transport/rpc-error.ts";

/** Options that a template replaces. */
const FROM_TEMPLATE = ["from", "gpu", "cpu", "memory", "env", "driver-config-json"];

export const spec: CommandSpec = {
  path: ["sandbox", "create"],
  summary: "create a sandbox",
  trailing: "separated",
  flags: [
    { long: "name", value: "NAME", help: "name (default: generated)" },
    ...WORKLOAD_FLAGS,
    { long: "detach", help: "do not join the main process; return when the sandbox is ready" },
    { long: "no-keep", conflicts: ["keep"], help: "remove the sandbox when the main process has ended" },
    { long: "keep", hidden: true, help: "the default" },
    { long: "template", value: "NAME", conflicts: FROM_TEMPLATE, help: "named workload to create it from" },
    { long: "gpu", value: "[N]", help: "GPUs, one unless N says otherwise, where the driver offers them" },
    {
      long: "restart-policy",
      value: "WHEN",
      choices: ["never", "on-failure", "always"],
      help: "when the main process is started again: never (default), on-failure (status other than 0) or always",
    },
    {
      long: "expose",
      value: "PORT",
      help: "route a port to the unnamed service; keeps the sandbox",
      conflicts: ["no-keep"],
    },
    {
      long: "expose-authorization-mode",
      value: "MODE",
      choices: ["strip", "bearer-passthrough"],
      help: "Authorization header of requests to --expose: strip (default) or bearer-passthrough",
    },
    { long: "driver-config-json", value: "JSON", help: "settings by driver name, where the gateway allows it" },
    { long: "no-credential-warnings", help: "do not warn of credentials in --env" },
    { ...OUTPUT_FLAG, conflicts: ["no-keep"] },
  ],
  about: [
    "Creates a sandbox with COMMAND as its main process (default: a login shell) and joins it with this terminal.",
    "Ctrl-D, or Ctrl-P and then Ctrl-Q, leaves a terminal and lets the command run on; `sandbox connect` joins it again.",
    "The sandbox stays when the command has ended; its phase is then Completed, or Error for a status other than 0.",
    "With --restart-policy the gateway starts the command again: at once, and after a quick end following 1 s, doubling up to 3 min; 10 s of running begin anew. `sandbox stop` ends that. The status of this command is that of the first run.",
  ],
  examples: ["openshell sandbox create --name dev", "openshell sandbox create --name job --detach -- sleep infinity"],
};

/** Characters, and levels, of `--driver-config-json`: what a gateway takes of a Struct. */
const MAX_CONFIG = 64 * 1024;
const MAX_DEPTH = 32;
const READY = ["Ready", "Completed"];

export async function run(context: Context, args: Args): Promise<number> {
  const detach = args.has("detach");
  const ephemeral = args.has("no-keep");
  const structured = context.outputFormat !== "table";
  const restart = args.value("restart-policy") ?? "never";
  if (ephemeral && restart !== "never") {
    throw usageError(
      `--no-keep removes the sandbox when its command has ended, --restart-policy ${restart} starts the command again`,
      "Leave one of them out",
    );
  }
  const joined = !detach && !structured;
  if (!joined) limitSeconds(context, "OPENSHELL_PROVISION_TIMEOUT");
  const tty = wantsTty(context);
  // The gateway's own choice of a command comes with a terminal.
  const command = args.command.length === 0 && args.either("tty") === false ? LOGIN_SHELL : args.command;
  const volumes = volumesOf(context);
  const { request, spec: workload } = await workloadRequest(context, volumes);
  await warnOfCredentials(context, args);
  if (args.has("cpu") || args.has("memory")) await (await import("../model/limits.ts")).warnOfLimits(context);
  const create = {
    ...request,
    name: args.value("name") ?? "",
    ...(ephemeral
      ? { annotations: { ...object(request["annotations"]), "openshell.nvidia.com/retention": "ephemeral" } }
      : {}),
    awaitMainProcessAttachment: joined,
    ...serviceExposures(args),
    ...(args.has("template") ? { workloadTemplate: args.value("template") } : {}),
    spec: { ...placement(withDriverConfig(workload, args), args), command, tty },
  };
  using interruption = Interruption.listen();
  using progress = Progress.start(context.surroundings.stderr, context.err, "Creating the sandbox");
  const view = sandboxView(object(await createOrExplain(context, create, interruption.atOnce))["sandbox"]);
  const { name } = view;
  if (!ephemeral) rememberSandbox(context, name);
  if (structured || detach) {
    progress.stop();
    if (!structured) await context.print(`\nCreated sandbox: ${cell(name)}\n\n`);
    const ready = await waitForPhase(context, name, {
      until: READY,
      failed: ephemeral ? ["Error", "Stopped"] : ["Error", "Stopped", "Deleting"],
      doing: "Starting sandbox",
      limitVariable: "OPENSHELL_PROVISION_TIMEOUT",
      goes: ephemeral,
    });
    if (hasRun(ready)) {
      const then = awaitsRestart(ready) ? "; its restart policy starts it again" : "";
      await context.warn(`the command of ${name} has ended already, with status ${ready.status["exitCode"]}${then}`);
    }
    const format = context.outputFormat;
    if (format !== "table") await context.printStructured({ ...sandboxObject(ready), service_urls: {} }, format);
    return EXIT.ok;
  }
  progress.stop();
  await context.say(`\nCreated sandbox: ${cell(name)}\n`);
  const target = await context.ensureGateway();
  let lost = false;
  using _slow = watchSlowStart(context, name);
  try {
    const result = await attach(
      {
        endpoint: target.endpoint,
        start: {
          workspace: context.workspace,
          sandbox: name,
          command: [],
          tty,
          ...windowSize(context.surroundings.stdout),
        },
        mainProcess: true,
        tty,
        detachable: !ephemeral,
        inputOutlivesUs: !ephemeral && tty && context.surroundings.stdin.isTTY === true,
        signal: interruption.atOnce,
        recover: () => context.recoverGateway(),
      },
      context.surroundings,
    );
    if (result.kind === "detached") {
      await context.say(`\r\n${detachedLine(name)}`);
      return EXIT.ok;
    }
    if (restart === "always" || (restart === "on-failure" && result.code !== 0)) {
      const next = `\`openshell sandbox stop ${name}\` ends that`;
      await context.say(`openshell: ${name} is started again by its restart policy; ${next}`);
    }
    return result.code;
  } catch (error) {
    lost = error instanceof LostError;
    if (interruption.signalled === undefined) throw error;
    if (!ephemeral)
      await context.say(`openshell: left ${name}, which runs on; \`openshell sandbox stop ${name}\` ends it`);
    return interruption.exitCode(EXIT.failure);
  } finally {
    if (ephemeral && !lost) {
      const request = { workspaceScope: context.scope, name, allowMissing: true };
      await context.call("DeleteSandbox", request, { timeoutMs: DELETE_TIMEOUT_MS });
    }
  }
}

async function createOrExplain(context: Context, request: Readonly<Record<string, unknown>>, signal: AbortSignal) {
  try {
    return await context.call("CreateSandbox", request, { signal });
  } catch (error) {
    if (!(error instanceof RpcError) || error.code !== "already_exists") throw error;
    const name = String(request["name"]);
    throw new CliError(error.message, {
      code: codeOf(error),
      next: `Remove it with \`openshell sandbox delete ${name}\`, or choose another --name`,
      cause: error,
    });
  }
}

/** Devices and restarts. What a gateway cannot do it refuses by name. */
function placement(workload: Readonly<Record<string, unknown>>, args: Args) {
  const restart = args.value("restart-policy");
  const count = wholeNumber(args.value("gpu"), "gpu", 1, 1024);
  return {
    ...workload,
    ...(args.has("gpu") ? { resourceRequirements: { gpu: count === undefined ? {} : { count } } } : {}),
    ...(restart === undefined
      ? {}
      : { restartPolicy: `SANDBOX_RESTART_POLICY_${restart.toUpperCase().replace("-", "_")}` }),
  };
}

function serviceExposures(args: Args) {
  const targetPort = wholeNumber(args.value("expose"), "expose", 1, 65_535);
  const mode = args.value("expose-authorization-mode");
  if (targetPort === undefined) {
    if (mode === undefined) return {};
    throw usageError("--expose-authorization-mode needs --expose", "Write --expose PORT");
  }
  const authorizationMode = `SERVICE_AUTHORIZATION_MODE_${(mode ?? "strip").toUpperCase().replace("-", "_")}`;
  return { serviceExposures: [{ service: "", targetPort, authorizationMode }] };
}

function withDriverConfig(workload: Readonly<Record<string, unknown>>, args: Args) {
  const text = args.value("driver-config-json");
  if (text === undefined) return workload;
  let given: unknown;
  try {
    given = text.length <= MAX_CONFIG ? JSON.parse(text) : undefined;
  } catch {
    given = undefined;
  }
  if (typeof given !== "object" || given === null || Array.isArray(given)) {
    throw usageError("--driver-config-json is no JSON object", `Write --driver-config-json '{"local": {…}}'`);
  }
  if (depthOf(given, MAX_DEPTH) > MAX_DEPTH) {
    throw usageError("--driver-config-json is nested too deeply", `Nest at most ${MAX_DEPTH} levels`);
  }
  const template = object(workload["template"]);
  const config = { ...(given as Record<string, unknown>) };
  const local = object(object(template["driverConfig"])["local"]);
  if (Object.keys(local).length > 0) config["local"] = { ...object(config["local"]), ...local };
  return { ...workload, template: { ...template, driverConfig: config } };
}

/** Levels of a JSON value; it is not looked at below `most`. */
function depthOf(value: unknown, most: number): number {
  if (typeof value !== "object" || value === null || most < 0) return 0;
  return 1 + Math.max(0, ...Object.values(value).map((inner) => depthOf(inner, most - 1)));
}

async function warnOfCredentials(context: Context, args: Args): Promise<void> {
  if (args.has("no-credential-warnings")) return;
  const names = secretLooking(args.values("env").map((text) => text.split("=", 1)[0]!));
  if (names.length === 0) return;
  await context.warn(`${names.join(", ")}: a variable gives the agent the value itself`);
  await context.say(
    "  A provider keeps it outside: openshell provider create --name NAME --type generic --credential KEY",
  );
}

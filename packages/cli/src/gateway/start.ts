import { closeSync, constants, openSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { ensureFolder } from "@openshell/base/atomic-file.ts";
import { daemonEnvironment, spawnDaemon } from "@openshell/base/daemon.ts";
import { systemCode } from "@openshell/base/errors.ts";
import { acquireFileLock } from "@openshell/base/file-lock.ts";
import { type ReadyLine, userSocketPath } from "@openshell/base/gateway-record.ts";
import type { GatewayPaths } from "@openshell/base/paths.ts";
import { distFolder } from "../build-info.ts";
import type { Context } from "../context.ts";
import { CliError } from "../errors.ts";
import { Progress } from "../output/progress.ts";
import { needsStart, type StartReason } from "./record.ts";
import type { Target } from "./resolve.ts";
import { stopForReplacement } from "./stop.ts";

/**
 * A young generation of 4 MB in place of 16: it is collected before V8 counts the buffers of bulk output as memory pressure
 * and collects everything. One thread that helps to collect in place of four, which cost more than they bring with so small a
 * one. And a heap that is collected when it is twice what it was, not four times: a burst of changes to thousands of
 * sandboxes would leave hundreds of megabytes behind. Hosts have other limits: small proxied requests cost them more with these.
 */
export const GATEWAY_NODE_OPTIONS: readonly string[] = [
  "--max-semi-space-size=4",
  "--v8-pool-size=1",
  "--heap-growing-percent=100",
];

/** From the start of the process to its readiness; includes keys, certificates and migrations of a large store. Milliseconds. */
export const START_TIMEOUT_MS = 30_000;
const POLL_MS = 25;
/** Lines of the gateway's own last words that are shown when it does not come up. */
const SHOWN_LINES = 8;
const MAX_READY_BYTES = 64 * 1024;

/** The command line's own variables, and secrets of it: nothing for a process that stays. */
const NOT_INHERITED: ReadonlySet<string> = new Set([
  "OPENSHELL_GATEWAY",
  "OPENSHELL_GATEWAY_ENDPOINT",
  "OPENSHELL_GATEWAY_INSECURE",
  "OPENSHELL_WORKSPACE",
  "OPENSHELL_COLOR",
  "OPENSHELL_LAUNCHER",
  "OPENSHELL_SANDBOX_POLICY",
  "OPENSHELL_OIDC_CLIENT_SECRET",
]);

export function gatewayEnvironment(env: Readonly<Record<string, string | undefined>>): Record<string, string> {
  return Object.fromEntries(Object.entries(daemonEnvironment(env)).filter(([name]) => !NOT_INHERITED.has(name)));
}

/** The gateway's program. */
export function gatewayProgram(env: Readonly<Record<string, string | undefined>>): string {
  const folder = distFolder(env);
  if (folder !== undefined) return join(folder, "gateway.mjs");
  throw new CliError("the gateway's program is not there: this command line runs without a build", {
    code: "build_missing",
    next: "Use ./openshell of a checkout, or set OPENSHELL_DIST to the folder with gateway.mjs",
  });
}

/** A private folder of the gateway. */
async function usableFolder(folder: string): Promise<void> {
  try {
    await ensureFolder(folder);
  } catch (cause) {
    throw new CliError(
      `the folder ${folder} cannot be made or used (${systemCode(cause) ?? (cause as Error).message})`,
      {
        code: "folder_unusable",
        next: "Set HOME, or XDG_CONFIG_HOME and XDG_STATE_HOME, to folders that you may write",
        cause,
      },
    );
  }
}

export interface StartOptions {
  /** Nobody asked for a gateway in so many words: another build may replace it later. */
  readonly auto: boolean;
  readonly quiet?: boolean;
}

/**
 * Starts the embedded gateway in a session of its own and returns when it is ready. Two command lines at once start one:
 * the lock is the kernel's, and whoever comes second waits. Says once on standard error what it does. False when another
 * one had started it meanwhile.
 */
export async function startGateway(
  target: Target & { readonly kind: "embedded" },
  reason: StartReason,
  context: Context,
  options: StartOptions = { auto: true },
): Promise<boolean> {
  const { paths, name } = target;
  const deadline = performance.now() + START_TIMEOUT_MS;
  await usableFolder(paths.state);
  using progress = Progress.start(context.surroundings.stderr, context.err, "Starting the gateway");
  for (;;) {
    using lock = acquireFileLock(join(paths.state, "start.lock"));
    if (lock !== undefined) {
      const current = needsStart(paths);
      // Another command line may have done it while this one waited for the lock.
      if (current?.kind !== "outdated" && (await accepts(userSocketPath(paths)))) return false;
      progress.stop();
      if (current?.kind === "outdated") {
        await context.say(
          `openshell: replacing the running gateway (version ${current.record.version}, another build); sandboxes keep running`,
        );
        await stopForReplacement(paths, current.record);
      } else if (options.quiet !== true) {
        await context.say(
          "openshell: starting the gateway (it stays in the background; `openshell gateway stop` ends it)",
        );
      }
      await launch(name, paths, deadline, context, options);
      return true;
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    if (reason.kind === "not-running" && (await accepts(userSocketPath(paths)))) return false;
    if (performance.now() > deadline) {
      throw new CliError(`another command has been starting the gateway for ${START_TIMEOUT_MS / 1000} s`, {
        code: "gateway_start_failed",
        next: `Look into ${paths.logs}`,
      });
    }
    progress.update("Waiting for the gateway that another command starts");
  }
}

async function launch(
  name: string,
  paths: GatewayPaths,
  deadline: number,
  context: Context,
  options: StartOptions,
): Promise<void> {
  await usableFolder(paths.logs);
  const lastWords = join(paths.logs, "gateway.stderr");
  const { O_WRONLY, O_CREAT, O_TRUNC, O_NOFOLLOW } = constants;
  const output = openSync(lastWords, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0o600);
  const args = ["serve", "--name", name, "--ready-fd", "3", ...(options.auto ? ["--auto-started"] : [])];
  const env = gatewayEnvironment(context.env);
  using progress = Progress.start(context.surroundings.stderr, context.err, "Starting the gateway");
  try {
    const program = gatewayProgram(context.env);
    const child = spawnDaemon({ program, args, env, output, nodeOptions: GATEWAY_NODE_OPTIONS });
    const ended = new Promise<string>((resolve) => {
      child.once("error", (error) => resolve(error.message));
      child.once("exit", (code, signal) => resolve(signal === null ? `exit status ${code}` : `signal ${signal}`));
    });
    const timer = new AbortController();
    const late = new Promise<"late">((resolve) => {
      const handle = setTimeout(() => resolve("late"), Math.max(0, deadline - performance.now()));
      timer.signal.addEventListener("abort", () => clearTimeout(handle));
    });
    const line = await Promise.race([readyLine(child.stdio[3] as NodeJS.ReadableStream), late]);
    timer.abort();
    child.unref();
    if (line === "late") {
      child.kill("SIGTERM");
      throw notStarted(paths, lastWords, `it was not ready within ${START_TIMEOUT_MS / 1000} s`, "");
    }
    if (line?.ready === true) return;
    progress.stop();
    // One of the same name runs already, started in another way: it will do as soon as it answers.
    if (line?.code === "gateway_running" && (await acceptsWithin(userSocketPath(paths), deadline))) return;
    if (line !== undefined)
      throw new CliError(`the gateway did not start: ${line.message}`, {
        code: line.code,
        next: line.next === "" ? [] : line.next,
      });
    throw notStarted(paths, lastWords, await ended, lastLines(lastWords));
  } finally {
    closeSync(output);
  }
}

function notStarted(paths: GatewayPaths, lastWords: string, why: string, said: string): CliError {
  const details = (said || lastLines(lastWords)).split("\n").filter((text) => text !== "");
  return new CliError(`the gateway did not start: ${why}`, {
    code: "gateway_start_failed",
    details,
    next: `See ${join(paths.logs, "gateway.log")}`,
  });
}

/** The line that tells readiness; undefined when the gateway ended without one. */
async function readyLine(stream: NodeJS.ReadableStream): Promise<ReadyLine | undefined> {
  let text = "";
  try {
    for await (const chunk of stream) {
      text += String(chunk);
      if (text.includes("\n") || text.length > MAX_READY_BYTES) break;
    }
    return text === "" ? undefined : (JSON.parse(text.split("\n", 1)[0]!) as ReadyLine);
  } catch {
    return undefined;
  }
}

/** Whether somebody accepts connections there. */
export function accepts(socket: string): Promise<boolean> {
  return new Promise((resolve) => {
    const connection = process.getBuiltinModule("node:net").connect(socket);
    connection.once("connect", () => {
      connection.destroy();
      resolve(true);
    });
    connection.once("error", () => resolve(false));
  });
}

async function acceptsWithin(socket: string, deadline: number): Promise<boolean> {
  while (!(await accepts(socket))) {
    if (performance.now() > deadline) return false;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
  return true;
}

function lastLines(path: string): string {
  try {
    return readFileSync(path, "utf8").trimEnd().split("\n").slice(-SHOWN_LINES).join("\n");
  } catch {
    return "";
  }
}

import { existsSync, readFileSync } from "node:fs";
import { mkdir, rm } from "node:fs/promises";
import { dirname, isAbsolute, join } from "node:path";
import { writeFileAtomic } from "@openshell/base/atomic-file.ts";
import { describeError, systemCode } from "@openshell/base/errors.ts";
import { escapeUntrusted } from "@openshell/base/escape.ts";
import { type GatewayRecord, runningGateway, userSocketPath } from "@openshell/base/gateway-record.ts";
import type { GatewayPaths } from "@openshell/base/paths.ts";
import { ownBuild } from "../build-info.ts";
import type { Context } from "../context.ts";
import { CliError } from "../errors.ts";
import type { Target } from "./resolve.ts";
import { type ServiceUnit, serviceUnit, unitText } from "./service-unit.ts";
import { accepts, START_TIMEOUT_MS } from "./start.ts";
import { stopForReplacement } from "./stop.ts";

type Own = Target & { readonly kind: "embedded" };

/** One answer of systemd; starting and stopping a unit waits for the unit. Milliseconds. */
const SYSTEMCTL_LIMIT_MS = 60_000;
const POLL_MS = 25;
/** Characters of what systemctl says that are repeated. */
const MAX_SAID = 300;
/** Folder with a file for each user whose services run without a session. */
const LINGER_FOLDER = "/var/lib/systemd/linger";

/** The systemd that a unit belongs to, as this person reaches it. */
interface Manager {
  readonly unit: ServiceUnit;
  readonly env: Readonly<Record<string, string | undefined>>;
}

/**
 * Makes the gateway a service and starts it as one. Repeatable: an unchanged service that runs this build is left alone,
 * another one is restarted, and a gateway that was started in another way is replaced. Sandboxes go on in every case.
 */
export async function startService(target: Own, context: Context): Promise<void> {
  const { name, paths } = target;
  const unit = serviceUnit(name, context.surroundings);
  const manager: Manager = { unit, env: context.env };
  const changed = await writeUnit(unit, name, context);
  const missing = await managerProblem(manager);
  if (missing !== undefined) {
    const who = unit.scope === "user" ? "systemd's user manager" : "systemd";
    const options = unit.scope === "user" ? " --user" : "";
    throw new CliError(`the service is not started: ${who} does not answer here (${missing})`, {
      code: "service_failed",
      details: [`the service is described in ${unit.path}`],
      next: [
        `Where it does, such as in a login session: systemctl${options} daemon-reload && systemctl${options} enable --now ${unit.name}`,
        "Until then: openshell gateway start",
      ],
    });
  }
  await systemctl(manager, "daemon-reload");
  await systemctl(manager, "enable", unit.name);
  const before = runningGateway(paths);
  const active = (await ask(manager, "is-active", unit.name)).status === 0;
  if (active && before !== undefined && !changed && before.build === ownBuild()) {
    await context.success(`Gateway ${name} runs already as the service ${unit.name} (pid ${before.pid}).`);
    return;
  }
  if (before !== undefined) await context.say("openshell: replacing the running gateway; sandboxes keep running");
  if (before !== undefined && !active) await stopForReplacement(paths, before);
  // Earlier failures would count against this start.
  await ask(manager, "reset-failed", unit.name);
  await systemctl(manager, active ? "restart" : "start", unit.name);
  const record = await untilServing(manager, paths, before);
  await context.success(`Gateway ${name} runs as the service ${unit.name} (pid ${record.pid}, ${record.endpoint}).`);
  if (unit.scope === "user" && !lingers()) {
    await context.say(
      "  It ends with your last session, and its sandboxes with it; `loginctl enable-linger` keeps them.",
    );
  }
}

/** Takes the service away; its gateway has been stopped before. */
export async function removeService(target: Own, context: Context): Promise<void> {
  const unit = serviceUnit(target.name, context.surroundings);
  const manager: Manager = { unit, env: context.env };
  if (!existsSync(unit.path)) {
    await context.say(`· Gateway ${target.name} is no service.`);
    return;
  }
  const managed = (await managerProblem(manager)) === undefined;
  // One that waits to be restarted is stopped, too.
  if (managed) await ask(manager, "stop", unit.name);
  for (const path of [unit.wanted, unit.path]) await rm(path, { force: true });
  if (managed) await systemctl(manager, "daemon-reload");
  await context.success(`Service ${unit.name} removed.`);
}

/** Writes the unit when it is not there as it should be. True when it was written. */
async function writeUnit(unit: ServiceUnit, gateway: string, context: Context): Promise<boolean> {
  const launcher = context.env["OPENSHELL_LAUNCHER"] ?? "";
  if (!isAbsolute(launcher) || !existsSync(launcher)) {
    throw new CliError("a service needs the command `openshell` itself: this command line was started in another way", {
      code: "service_failed",
      next: "Run `openshell gateway start --service` with the command that you usually use",
    });
  }
  let text: string;
  try {
    text = unitText({ gateway, scope: unit.scope, launcher, env: context.env });
  } catch (error) {
    throw new CliError(`the service cannot be described: ${(error as Error).message}`, {
      code: "service_failed",
      next: "Use a path and variables without control characters",
    });
  }
  if (readText(unit.path) === text) return false;
  try {
    await mkdir(dirname(unit.path), { recursive: true });
    await writeFileAtomic(unit.path, text, 0o644);
  } catch (error) {
    throw new CliError(`${unit.path} cannot be written: ${describeError(error)}`, {
      code: "service_failed",
      next: "Make its folder writable, then try again",
    });
  }
  return true;
}

function readText(path: string): string | undefined {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return undefined;
  }
}

/** Why no manager answers; undefined when one does. */
async function managerProblem(manager: Manager): Promise<string | undefined> {
  const { status, said } = await ask(manager, "show", "--property=Version");
  return status === 0 ? undefined : said;
}

/** @throws CliError with what systemctl said unless it succeeds. */
async function systemctl(manager: Manager, ...args: readonly string[]): Promise<void> {
  const { status, said } = await ask(manager, ...args);
  if (status === 0) return;
  throw new CliError(`systemctl ${args.join(" ")} failed: ${said}`, {
    code: "service_failed",
    next: `See ${journal(manager.unit)}`,
  });
}

const journal = ({ scope, name }: ServiceUnit): string => `journalctl${scope === "user" ? " --user" : ""} -u ${name}`;

function ask(
  { unit, env }: Manager,
  ...args: readonly string[]
): Promise<{ readonly status: number; readonly said: string }> {
  const { execFile } = process.getBuiltinModule("node:child_process");
  const scope = unit.scope === "user" ? ["--user"] : [];
  return new Promise((resolve) => {
    execFile(
      "systemctl",
      [...scope, ...args],
      { timeout: SYSTEMCTL_LIMIT_MS, env: { ...env } },
      (error, _stdout, stderr) => {
        if (error === null) return resolve({ status: 0, said: "" });
        const why =
          systemCode(error) === "ENOENT"
            ? "systemctl is not installed"
            : stderr.trim().split("\n")[0] || "it said nothing";
        resolve({ status: typeof error.code === "number" ? error.code : 1, said: escapeUntrusted(why, MAX_SAID) });
      },
    );
  });
}

/** Waits until a gateway other than the one before serves. */
async function untilServing(
  manager: Manager,
  paths: GatewayPaths,
  before: GatewayRecord | undefined,
): Promise<GatewayRecord> {
  const { unit } = manager;
  const deadline = performance.now() + START_TIMEOUT_MS;
  for (;;) {
    const record = runningGateway(paths);
    const other = record?.pid !== before?.pid || record?.startTime !== before?.startTime;
    if (record !== undefined && other && (await accepts(userSocketPath(paths)))) return record;
    const late = performance.now() > deadline;
    if (late || (await ask(manager, "is-failed", unit.name)).status === 0) {
      const how = late ? `it was not ready within ${START_TIMEOUT_MS / 1000} s` : "it failed";
      throw new CliError(`the service ${unit.name} did not start: ${how}`, {
        code: "service_failed",
        next: [`See ${journal(unit)}`, `See ${join(paths.logs, "gateway.log")}`],
      });
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

/** Whether services of this user run without a session. */
function lingers(): boolean {
  try {
    return existsSync(join(LINGER_FOLDER, process.getBuiltinModule("node:os").userInfo().username));
  } catch {
    return false;
  }
}

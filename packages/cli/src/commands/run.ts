import { posix } from "node:path";
import type { Args, CommandSpec } from "../args.ts";
import type { Context } from "../context.ts";
import { CliError, EXIT, errorLines, quote, usageError } from "../errors.ts";
import { object } from "../model/sandbox.ts";
import { LOGIN_SHELL, type Volume, volumesOf, WORKLOAD_FLAGS, wantsTty, workloadRequest } from "../model/workload.ts";
import { Progress } from "../output/progress.ts";
import { attach, windowSize } from "../terminal/attach.ts";
import { detachedLine } from "../terminal/detach-keys.ts";
import { Interruption } from "../terminal/interruption.ts";
import { LostError } from "../terminal/resume.ts";
import { type Connection, openConnection } from "../transport/grpc-stream.ts";
import { DELETE_TIMEOUT_MS } from "../transport/limits.ts";
import { RpcError } from "../transport/rpc-error.ts";
import type { Json } from "../transport/unary.ts";
import { UnreachableError } from "../transport/unreachable.ts";

export const spec: CommandSpec = {
  path: ["run"],
  summary: "run one command in a sandbox of its own",
  trailing: "direct",
  flags: [
    ...WORKLOAD_FLAGS,
    {
      long: "workdir",
      value: "PATH",
      help: "folder inside to start in (default: the mounted current folder, else the home)",
    },
    { long: "name", value: "NAME", help: "name of the sandbox (default: generated)" },
    { long: "keep", help: "keep the sandbox when the command has ended" },
  ],
  about: [
    "Creates a sandbox, runs COMMAND in it as its main process, joins it with this terminal, and removes the sandbox again.",
    "The exit status is the command's own; 128 + N when signal N ended it; 127 when it does not exist inside.",
    "Without COMMAND a login shell is started: in a terminal when the input is one, else it runs what the input says.",
  ],
  examples: [
    "openshell run -- id",
    'openshell run --volume "$PWD:/work" -- make test',
    'openshell run --policy policy.yaml --provider model --volume "$PWD:/work" --volume "$HOME/agent:/opt/agent:ro" -- /opt/agent/run',
  ],
};

/** Annotation of sandboxes that nobody wants once their main process has ended. */
const EPHEMERAL = { "openshell.nvidia.com/retention": "ephemeral" };
/** Whoever interrupts twice waits no longer than this; the gateway, having noted the wish, goes on by itself. Milliseconds. */
const FORCED_DELETE_MS = 1_500;
/** A start that takes so long is looked at closer. Milliseconds. */
const SLOW_START_MS = 5_000;
const NAME_LETTERS = "bcdfghjkmnpqrstvwxz23456789";

export async function run(context: Context, args: Args): Promise<number> {
  const keep = args.has("keep");
  const tty = wantsTty(context);
  // The gateway's own choice of a command comes with a terminal.
  const command = args.command.length > 0 || tty ? args.command : LOGIN_SHELL;
  const volumes = volumesOf(context);
  const workdir = args.value("workdir") ?? mountedWorkdir(context.surroundings.cwd, volumes);
  if (workdir !== undefined && !workdir.startsWith("/")) {
    throw usageError(
      `--workdir ${quote(workdir)} is no absolute path`,
      "Name a folder inside the sandbox, such as /work",
    );
  }
  const { request, spec: workload } = await workloadRequest(context, volumes);
  const name = args.value("name") ?? generatedName();
  const create: Json = {
    ...request,
    name,
    ...(keep ? {} : { annotations: { ...object(request["annotations"]), ...EPHEMERAL } }),
    awaitMainProcessAttachment: true,
    spec: { ...workload, command: inFolder(command, workdir), tty },
  };
  await sayWhere(context, volumes, workdir);

  using interruption = Interruption.listen();
  const running = new AbortController();
  using progress = Progress.start(context.surroundings.stderr, context.err, "Starting the sandbox", () => {
    const onPreparing = (what: string): void => progress.update(`Starting the sandbox: ${what}`);
    void whenRunning(context, name, running.signal, onPreparing).then(() => progress.stop());
  });
  let made = false;
  const remove = async (): Promise<void> => {
    if (!made || keep) return;
    made = false;
    await context.call(
      "DeleteSandbox",
      { workspaceScope: context.scope, name, allowMissing: true },
      { timeoutMs: interruption.atOnce.aborted ? FORCED_DELETE_MS : DELETE_TIMEOUT_MS },
    );
  };
  try {
    const { endpoint } = await context.ensureGateway();
    if (args.has("cpu") || args.has("memory")) await (await import("../model/limits.ts")).warnOfLimits(context);
    // A first signal waits for the answer: then it is known what there is to remove.
    interruption.onFirst(() => {});
    let connection: Promise<Connection> | undefined;
    const onSent = (): void => {
      made = true;
      // The connection for attaching is made while the gateway works. Its failure is told by the attachment.
      connection ??= openConnection(endpoint);
      connection.catch(() => {});
    };
    try {
      await context.call("CreateSandbox", create, { signal: interruption.atOnce, onSent });
    } catch (error) {
      void connection?.then(
        ({ socket }) => socket.destroy(),
        () => {},
      );
      made = mayExist(error, args.has("name"));
      throw error;
    }
    // Without a terminal only what is wrong is worth a line.
    using _slow =
      context.surroundings.stderr.isTTY === true
        ? undefined
        : later(SLOW_START_MS, () => void whenRunning(context, name, running.signal, () => {}));
    if (interruption.signalled !== undefined) throw new CliError("interrupted", { code: "interrupted" });
    interruption.onFirst(() => {
      void context.call("StopSandbox", { workspaceScope: context.scope, name }).catch(() => interruption.force());
    });
    const result = await attach(
      {
        endpoint,
        ...(connection === undefined ? {} : { connection }),
        start: {
          workspace: context.workspace,
          sandbox: name,
          command: [],
          tty,
          ...windowSize(context.surroundings.stdout),
        },
        mainProcess: true,
        tty,
        detachable: keep,
        onOutput: () => progress.stop(),
        signal: interruption.atOnce,
        recover: () => context.recoverGateway(),
      },
      context.surroundings,
    );
    progress.stop();
    running.abort();
    if (result.kind === "detached") {
      await context.say(detachedLine(name));
      return EXIT.ok;
    }
    // Programs show little of an answer. A log without anybody in front of it is told when the command failed.
    if (context.surroundings.stderr.isTTY === true || (result.code !== 0 && interruption.signalled === undefined)) {
      const { sayDenials } = await import("../model/denials.ts");
      await sayDenials(context, name, result.midLine);
    }
    if (volumes.length > 0) {
      const { sayPlanted } = await import("../model/planted.ts");
      await sayPlanted(context, name, volumes);
    }
    // The command's own outcome is known, and stays it.
    await remove().catch((reason: unknown) =>
      context.warn(
        `sandbox ${name} could not be removed: ${(reason as Error).message}; \`openshell sandbox delete ${name}\` tries again`,
      ),
    );
    if (keep) await context.say(`openshell: kept sandbox ${name}; remove it with \`openshell sandbox delete ${name}\``);
    const code = interruption.exitCode(result.code);
    if (code === EXIT.notFound) await explainNotFound(context, args.command, code, volumes);
    return code;
  } catch (failure) {
    progress.stop();
    running.abort();
    if (failure instanceof LostError && interruption.signalled === undefined) {
      const next = `openshell logs ${name} -f shows its log; openshell sandbox delete ${name} ends it`;
      throw new LostError(failure.message, next);
    }
    const error = await startFailure(context, failure, args.command, volumes);
    await remove().catch((reason: unknown) => {
      const late = interruption.atOnce.aborted && reason instanceof RpcError && reason.code === "deadline_exceeded";
      return late
        ? context.say(`openshell: the gateway goes on removing sandbox ${name}`)
        : context.warn(`sandbox ${name} could not be removed: ${(reason as Error).message}`);
    });
    if (interruption.signalled !== undefined) return interruption.exitCode(EXIT.failure);
    throw error;
  }
}

function later(ms: number, action: () => void): Disposable {
  const timer = setTimeout(action, ms);
  timer.unref();
  return { [Symbol.dispose]: () => clearTimeout(timer) };
}

/** Resolves when the main process runs or has ended, or when that cannot be told. A silent command shows no progress. */
async function whenRunning(
  context: Context,
  name: string,
  signal: AbortSignal,
  onPreparing: (what: string) => void,
): Promise<void> {
  const { waitForPhase } = await import("../model/wait.ts");
  await waitForPhase(context, name, {
    until: ["Ready", "Completed", "Stopped", "Deleting"],
    failed: ["Error"],
    signal,
    onPreparing,
  }).catch(() => {});
}

/**
 * Whether a sandbox may exist although its creation failed: when the answer was lost. One whose name somebody chose is
 * left alone then, since it may be another one.
 */
function mayExist(error: unknown, named: boolean): boolean {
  if (named || !(error instanceof RpcError) || error instanceof UnreachableError) return false;
  return error.code === "unavailable" || error.code === "deadline_exceeded" || error.code === "canceled";
}

/** The target of the volume that holds the current folder, with the rest of the path; undefined when none or several do. */
export function mountedWorkdir(cwd: string, volumes: readonly Volume[]): string | undefined {
  const holding = volumes.filter(({ source }) => cwd === source || cwd.startsWith(source === "/" ? "/" : `${source}/`));
  const [only] = holding;
  return only === undefined || holding.length > 1 ? undefined : posix.join(only.target, cwd.slice(only.source.length));
}

/** The API has no working directory for the main process: a shell changes it and becomes the command. */
export function inFolder(command: readonly string[], workdir: string | undefined): readonly string[] {
  if (workdir === undefined) return command;
  const target = command.length > 0 ? command : LOGIN_SHELL;
  return ["/bin/sh", "-c", 'cd -- "$0" && exec "$@"', workdir, ...target];
}

async function sayWhere(context: Context, volumes: readonly Volume[], workdir: string | undefined): Promise<void> {
  const { stderr, cwd } = context.surroundings;
  if (stderr.isTTY !== true) return;
  const mounted = mountedWorkdir(cwd, volumes);
  const where =
    workdir === undefined
      ? "the sandbox's own home"
      : workdir === mounted
        ? `${workdir}, which is the current folder`
        : workdir;
  const hint = mounted === undefined ? `; the current folder is not mounted (--volume "$PWD:/work" does that)` : "";
  await context.say(context.err.dim(`openshell: working in ${where}${hint}`));
}

/** A program inside ended with 127: the shell's way to say that a command does not exist. */
async function explainNotFound(
  context: Context,
  command: readonly string[],
  code: number,
  volumes: readonly Volume[],
): Promise<void> {
  const { notFoundError } = await import("../model/not-found.ts");
  const error = notFoundError(command, code, false, context.env, volumes);
  for (const line of error === undefined ? [] : errorLines(error, context.err.bold)) await context.say(line);
}

/** A failure to start the command itself, in the terms of a shell; every other error as it is. */
async function startFailure(
  context: Context,
  failure: unknown,
  command: readonly string[],
  volumes: readonly Volume[],
): Promise<unknown> {
  const { notFoundError, startFailureCode } = await import("../model/not-found.ts");
  const code = startFailureCode(failure);
  return (code === undefined ? undefined : notFoundError(command, code, true, context.env, volumes)) ?? failure;
}

/**
 * Chosen here, so that the sandbox can be removed even when the answer to its creation is never read. It needs to be
 * unique, not secret: Node's cryptography would cost more than everything else here.
 */
function generatedName(): string {
  const letter = (): string => NAME_LETTERS[Math.floor(Math.random() * NAME_LETTERS.length)]!;
  return `run-${Array.from({ length: 10 }, letter).join("")}`;
}

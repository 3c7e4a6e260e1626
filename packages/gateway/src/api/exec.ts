import { create } from "@bufbuild/protobuf";
import type { HandlerContext } from "@connectrpc/connect";
import {
  type ExecSandboxEvent,
  ExecSandboxEventSchema,
  type ExecSandboxInput,
  type ExecSandboxRequest,
  ExecSandboxRequestSchema,
  SandboxPhase,
} from "@openshell/api";
import {
  failedPrecondition,
  invalidField,
  notFound,
  requestIdError,
  throwIfInvalid,
  unavailable,
} from "@openshell/api/errors.ts";
import {
  AttachStartSchema,
  ExecStartSchema,
  RelayCancelSchema,
  RelayKind,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { namedWorkspace } from "@openshell/api/selectors.ts";
import { readDuration, toDuration } from "@openshell/api/times.ts";
import type { OpenShellImpl } from "@openshell/api/unimplemented.ts";
import { Violations } from "@openshell/api/violations.ts";
import { encodedMessage } from "@openshell/rpc";
import { sandboxEnvironment } from "../compute/launch.ts";
import { restartPending, wantsToRun } from "../compute/status.ts";
import { type RelayChannel, type RelayOpener, RelayUnopened } from "../relay/broker.ts";
import { type ExecInput, spliceExec } from "../relay/exec.ts";
import { TIMEOUT_GRACE_MS } from "../relay/limits.ts";
import { DONE } from "../sessions/reader.ts";
import type { SandboxRecord } from "../store/types.ts";
import { type Admission, admissionError, admitted } from "./admission.ts";
import { type ApiDeps, namedSandbox } from "./context.ts";
import { checkCommand, checkEnvironment, RequestLimit } from "./validate-sandbox.ts";

/** Request header that makes an interactive exec attach to the main process instead. */
export const ATTACH_HEADER = "openshell-attach";
export const ATTACH_MAIN = "main-process";
/**
 * Which run of the main process an attachment has joined, in its response. Sent back when a lost attachment is made again:
 * the output of another run is then refused instead of being joined to that of the first.
 */
export const RUN_HEADER = "openshell-main-process-run";
/** A sandbox that is READY may be without its supervisor while it re-attaches: executions wait so long. */
const SESSION_WAIT_MS = 15_000;
/** An attachment made right after CreateSandbox waits so long for the sandbox to run. */
const ATTACH_WAIT_MS = 300_000;
/** `execution_timeout` at most: one year. */
const MAX_TIMEOUT_MS = 365 * 24 * 3_600_000;
/** Exit code that a supervisor reports when it ended a command at its timeout. */
const TIMEOUT_CODE = 124;
const MAX_WINDOW = 65_535;
/** A terminal of no size breaks programs that draw; this is what they expect of one that says nothing. */
const DEFAULT_ROWS = 24;
const DEFAULT_COLUMNS = 80;
/** Where a request's fields stand in the messages of ExecSandboxInteractive. */
const START = "start.";
type FieldPath = "" | typeof START;

export function execHandlers(deps: ApiDeps): Pick<OpenShellImpl, "execSandbox" | "execSandboxInteractive"> {
  return {
    async *execSandbox(request, context) {
      yield* runCommand(deps, request, once(request.stdin), context, "");
    },

    async *execSandboxInteractive(requests, context) {
      const inputs = requests[Symbol.asyncIterator]();
      const first = await inputs.next();
      if (first.done || first.value.payload.case !== "start") throw invalidField("start", "must be the first message");
      const start = first.value.payload.value;
      const attach = context.requestHeader.get(ATTACH_HEADER);
      if (attach !== null && attach !== ATTACH_MAIN) throw invalidField(ATTACH_HEADER, `must be "${ATTACH_MAIN}"`);
      const input = interactiveInput(start, inputs);
      if (attach === null) yield* runCommand(deps, start, input, context, START);
      else yield* attachMain(deps, start, input, context);
    },
  };
}

/** Runs a command in a READY sandbox. Output, then the exact exit, or an error; a lost supervisor is "outcome unknown". */
async function* runCommand(
  deps: ApiDeps,
  request: ExecSandboxRequest,
  input: AsyncIterable<ExecInput>,
  context: HandlerContext,
  path: FieldPath,
): AsyncGenerator<ExecSandboxEvent, void, void> {
  const workspace = namedWorkspace(request.workspaceScope, `${path}workspace_scope`);
  const timeoutMs = validateExec(request, path);
  const record = await namedSandbox(deps, workspace, request.sandbox, `${path}sandbox`);
  const admission = await execAdmission(deps, context, request, workspace, record, path);
  if (record.status.phase !== SandboxPhase.READY) throw notReady(record);
  const verdict = async (): Promise<void> => {
    const now = await deps.store.sandboxes.byId(record.id);
    if (now === undefined) throw notFound("sandbox", request.sandbox);
    if (!wantsToRun(now.status.phase)) throw notReady(now);
  };
  const { signal, end } = backstop(deps, context.signal, timeoutMs);
  const startedMs = deps.clock.monotonic();
  try {
    const wait = { limitMs: SESSION_WAIT_MS, signal, verdict };
    const { channel } = await openRelay(deps, record.id, RelayKind.EXEC, wait);
    // Admitted when everything but the start itself has worked: what fails before leaves the id unused.
    if (admission.admit.length > 0) {
      await deps.store.write(...admission.admit).catch((error: unknown) => {
        channel.close("cancelled");
        throw admissionError(error) ?? error;
      });
    }
    const start = create(ExecStartSchema, {
      command: request.command,
      workingDirectory: request.workdir,
      environment: { ...sandboxEnvironment(record), ...request.environment },
      tty: request.tty,
      rows: request.rows === 0 ? DEFAULT_ROWS : request.rows,
      columns: request.cols === 0 ? DEFAULT_COLUMNS : request.cols,
      noLoginShell: request.noLoginShell,
      ...(timeoutMs === undefined ? {} : { timeout: toDuration(timeoutMs) }),
    });
    for await (const event of spliceExec({ channel, start: { case: "exec", value: start }, input, signal })) {
      if (event.exit !== undefined) {
        // A 124 past the limit is the supervisor's own verdict, not the command's: the id stays unresolved.
        const timedOut =
          timeoutMs !== undefined &&
          event.exit.exitCode === TIMEOUT_CODE &&
          deps.clock.monotonic() - startedMs >= timeoutMs;
        const done = timedOut ? [] : admission.succeed("");
        if (done.length > 0) await deps.store.write(...done);
      }
      yield encodedMessage(ExecSandboxEventSchema, event.bytes);
    }
  } finally {
    end();
  }
}

/**
 * The caller's signal, which also ends calls when the gateway stops; with a timeout, one that aborts as well when the
 * supervisor, which enforces it, says nothing for long after.
 */
function backstop(
  deps: ApiDeps,
  caller: AbortSignal,
  timeoutMs: number | undefined,
): { readonly signal: AbortSignal; readonly end: () => void } {
  if (timeoutMs === undefined) return { signal: caller, end: () => {} };
  const limit = new AbortController();
  const message = "the supervisor did not report the end of a command past its timeout; its outcome is unknown";
  deps.clock.sleep(timeoutMs + TIMEOUT_GRACE_MS, { signal: limit.signal, unref: true }).then(
    () => limit.abort(unavailable(message, { next: "Check what the command did before running it again" })),
    () => {},
  );
  const onAbort = (): void => limit.abort(caller.reason);
  if (caller.aborted) onAbort();
  else caller.addEventListener("abort", onAbort, { once: true });
  const end = (): void => {
    caller.removeEventListener("abort", onAbort);
    limit.abort(DONE);
  };
  return { signal: limit.signal, end };
}

/** Executions are never replayed: a repeated id ends with what is known of the first one. */
function execAdmission(
  deps: ApiDeps,
  context: HandlerContext,
  request: ExecSandboxRequest,
  workspace: string,
  record: SandboxRecord,
  path: FieldPath,
): Promise<Admission> {
  const refuse = (): never => {
    throw requestIdError("REQUEST_STREAM_UNAVAILABLE");
  };
  const options = { schema: ExecSandboxRequestSchema, request, workspace, facts: [record.id], path };
  return admitted(deps, context, options, refuse, async (admission) => admission);
}

/** Attaches to the main process, waiting for a sandbox that is being started. */
async function* attachMain(
  deps: ApiDeps,
  start: ExecSandboxRequest,
  input: AsyncIterable<ExecInput>,
  context: HandlerContext,
): AsyncGenerator<ExecSandboxEvent, void, void> {
  const workspace = namedWorkspace(start.workspaceScope, `${START}workspace_scope`);
  refuseStarting(start);
  checkWindow(start.rows, start.cols, START);
  const record = await namedSandbox(deps, workspace, start.sandbox, `${START}sandbox`);
  const { signal } = context;
  const run = context.requestHeader.get(RUN_HEADER);
  const end = deps.attachments.begin(record.id);
  try {
    const verdict = async (): Promise<void> => {
      const now = await deps.store.sandboxes.byId(record.id);
      if (now === undefined) throw notFound("sandbox", start.sandbox);
      if (run !== null && isOver(deps, now, run)) throw otherRun(now);
      if (!wantsToRun(now.status.phase)) throw notRunning(now);
    };
    const wait = { limitMs: ATTACH_WAIT_MS, signal, verdict };
    const { channel, generation } = await openRelay(deps, record.id, RelayKind.ATTACH, wait);
    if (run !== null && run !== String(generation)) {
      channel.close("cancelled");
      throw otherRun(record);
    }
    context.responseHeader.set(RUN_HEADER, String(generation));
    const attach = create(AttachStartSchema, { stdin: true, rows: start.rows, columns: start.cols });
    for await (const { bytes } of spliceExec({ channel, start: { case: "attach", value: attach }, input, signal })) {
      yield encodedMessage(ExecSandboxEventSchema, bytes);
    }
  } finally {
    end();
  }
}

/** Whether nothing of this run can be had any more. */
function isOver({ controller }: ApiDeps, { id, generation, status }: SandboxRecord, run: string): boolean {
  return run !== String(generation) || (restartPending(status) && !controller.holdsOutput(id, generation));
}

function otherRun({ name }: SandboxRecord) {
  const message = `the main process of sandbox "${name}" that was attached to has ended, and another run follows it`;
  return failedPrecondition(message, { next: "Read its logs, or attach to the run that follows" });
}

/** What tells how to start a command means nothing for one that runs already. */
function refuseStarting(start: ExecSandboxRequest): void {
  const given: Readonly<Record<string, boolean>> = {
    command: start.command.length > 0,
    workdir: start.workdir !== "",
    environment: Object.keys(start.environment).length > 0,
    execution_timeout: start.executionTimeout !== undefined,
    no_login_shell: start.noLoginShell,
    request_id: start.requestId !== "",
  };
  const found = new Violations();
  for (const [field, set] of Object.entries(given))
    found.require(!set, START + field, "must be empty when attaching to the main process");
  throwIfInvalid(found);
}

interface RelayWait {
  readonly limitMs: number;
  readonly signal: AbortSignal;
  readonly verdict: () => Promise<void>;
}

/** Opens a relay on the sandbox's session, once more on its successor when the session ends before anything was started. */
async function openRelay(
  deps: ApiDeps,
  sandboxId: string,
  kind: RelayKind,
  wait: RelayWait,
): Promise<{ readonly channel: RelayChannel; readonly generation: bigint }> {
  const deadline = deps.clock.monotonic() + wait.limitMs;
  for (;;) {
    const limitMs = Math.max(1, deadline - deps.clock.monotonic());
    const session = await deps.sessions.ready(sandboxId, { ...wait, clock: deps.clock, limitMs });
    const opener: RelayOpener = {
      send: (value) => session.send({ case: "relayOpen", value }),
      cancel: (relayId) => {
        if (session.state !== "closed")
          session.send({ case: "relayCancel", value: create(RelayCancelSchema, { relayId }) });
      },
      onEnd: (ended) =>
        session.onState(() => {
          if (session.state === "closed") ended();
        }),
    };
    try {
      const channel = await deps.broker.open(sandboxId, kind, opener, wait.signal);
      return { channel, generation: session.generation };
    } catch (error) {
      if (!(error instanceof RelayUnopened)) throw error;
    }
  }
}

/** Checks what does not depend on the sandbox; gives the timeout in milliseconds. */
function validateExec(request: ExecSandboxRequest, path: FieldPath): number | undefined {
  const found = new Violations();
  checkCommand(request.command, `${path}command`, RequestLimit.execArguments, found);
  checkEnvironment(request.environment, `${path}environment`, "exec", found);
  found.require(
    Buffer.byteLength(request.workdir) <= RequestLimit.workdir,
    `${path}workdir`,
    `must have at most ${RequestLimit.workdir} bytes`,
  );
  found.require(!request.workdir.includes("\0"), `${path}workdir`, "must not contain NUL");
  found.require(
    request.stdin.length <= RequestLimit.stdin,
    `${path}stdin`,
    `must have at most ${RequestLimit.stdin} bytes`,
  );
  throwIfInvalid(found);
  checkWindow(request.rows, request.cols, path);
  return readDuration(request.executionTimeout, `${path}execution_timeout`, MAX_TIMEOUT_MS);
}

function checkWindow(rows: number, cols: number, path: FieldPath | "resize."): void {
  if (rows > MAX_WINDOW) throw invalidField(`${path}rows`, `must be at most ${MAX_WINDOW}`);
  if (cols > MAX_WINDOW) throw invalidField(`${path}cols`, `must be at most ${MAX_WINDOW}`);
}

async function* once(stdin: Uint8Array): AsyncGenerator<ExecInput, void, void> {
  if (stdin.length > 0) yield { kind: "stdin", data: stdin };
}

/** The caller's further messages. Its half-close ends them: end of file for the process, and no more resizes. */
async function* interactiveInput(
  start: ExecSandboxRequest,
  inputs: AsyncIterator<ExecSandboxInput>,
): AsyncGenerator<ExecInput, void, void> {
  if (start.stdin.length > 0) yield { kind: "stdin", data: start.stdin };
  for (;;) {
    const next = await inputs.next();
    if (next.done) return;
    const { payload } = next.value;
    if (payload.case === "stdin") yield { kind: "stdin", data: payload.value };
    else if (payload.case === "resize") {
      const { rows, cols } = payload.value;
      checkWindow(rows, cols, "resize.");
      if (rows > 0 && cols > 0) yield { kind: "resize", rows, columns: cols };
    } else throw invalidField("payload", "must be stdin or resize after the start");
  }
}

function notReady(record: SandboxRecord) {
  const phase = SandboxPhase[record.status.phase];
  return failedPrecondition(`sandbox "${record.name}" is not ready: phase ${phase}${reasonOf(record)}`, {
    next: afterRefusal(record.status.phase),
  });
}

/** What makes a sandbox of this phase run commands. */
function afterRefusal(phase: SandboxPhase): string {
  switch (phase) {
    case SandboxPhase.STOPPED:
      return "Start it first";
    case SandboxPhase.COMPLETED:
    case SandboxPhase.ERROR:
      return "Start it again, or read its conditions and logs";
    case SandboxPhase.DELETING:
      return "It is being removed: create another one";
    default:
      return "Wait until it is READY, or read its conditions";
  }
}

function notRunning(record: SandboxRecord) {
  const code = record.status.exitCode;
  const phase = SandboxPhase[record.status.phase];
  const ended = code === undefined ? "" : `; the main process ended with code ${code} and its output is no longer held`;
  return failedPrecondition(`sandbox "${record.name}" does not run: phase ${phase}${reasonOf(record)}${ended}`, {
    next:
      record.status.phase === SandboxPhase.DELETING
        ? "It is being removed: create another one"
        : "Start it again, or read its logs",
  });
}

function reasonOf(record: SandboxRecord): string {
  const ready = record.status.conditions.find((condition) => condition.type === "Ready");
  return ready === undefined ? "" : ` (${ready.reason}: ${ready.message})`;
}

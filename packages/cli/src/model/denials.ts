import { escapeUntrusted } from "@openshell/base/escape.ts";
import type { Context } from "../context.ts";
import type { Json } from "../transport/unary.ts";
import { object, text } from "./sandbox.ts";

/** Different refusals that are shown after a command. */
const SHOWN = 3;
/** Newest lines that are looked at. */
const LINES = 500;
/** A person waits no longer for this at the end of a command. Milliseconds. */
const LIMIT_MS = 2_000;
/**
 * The end of a command arrives by another connection than the log, which may be behind. The supervisor sends its lines before
 * it reports the end to the gateway, whose own line about it tells that they are all there. Milliseconds.
 */
const COMPLETE_LIMIT_MS = 500;
const POLL_MS = 20;
const ENDED = /^MainProcess(Completed|Failed)\b/;

export interface Denial {
  /** Who and where to: `/usr/bin/curl(5) -> example.com:443`. */
  readonly what: string;
  readonly reason: string;
  readonly next: string;
}

/** A refusal in an event's line: `NET:OPEN [MED] DENIED what [policy:…] [reason:…] [code:… next:… …]`. */
export function parseDenial(message: string): Denial | undefined {
  const match = /^[A-Z]+:[A-Z]+ \[[A-Z]+\] DENIED (.*?) \[policy:/.exec(message);
  if (match === null) return undefined;
  const reason = / \[reason:(.*?)\](?= \[|$)/.exec(message)?.[1] ?? "";
  const next = /[ []next:(\S*)/.exec(message)?.[1] ?? "";
  return { what: match[1]!.trim(), reason, next: unescapeToken(next.replace(/\]$/, "")) };
}

/** Values of an event's context have `\u{…}` for spaces and brackets. */
function unescapeToken(token: string): string {
  return token.replace(/\\u\{([0-9a-f]{1,6})\}/gi, (_match, hex: string) =>
    String.fromCodePoint(Number.parseInt(hex, 16)),
  );
}

/**
 * What the policy refused a sandbox, for the person in front of the terminal. Says nothing when nothing was, or when it cannot
 * be told. `midLine`: the cursor stands behind output that has no end of line.
 */
export async function sayDenials(context: Context, sandbox: string, midLine = false): Promise<void> {
  let lines: readonly Json[];
  try {
    lines = await completeLog(context, sandbox);
  } catch {
    return;
  }
  const denials = lines.flatMap((line) =>
    line["source"] === "sandbox" ? (parseDenial(text(line["message"])) ?? []) : [],
  );
  const different = [...new Map(denials.map((denial) => [withoutPid(denial.what) + denial.reason, denial])).values()];
  if (different.length === 0) return;
  const times = denials.length === 1 ? "once" : `${denials.length} times`;
  if (midLine) await context.say("");
  await context.say(context.err.yellow(`openshell: the policy refused ${times}:`));
  for (const { what, reason, next } of different.slice(0, SHOWN)) {
    await context.say(`  ${escapeUntrusted(withoutPid(what))}: ${escapeUntrusted(reason)}`);
    if (next !== "") await context.say(context.err.dim(`    next: ${escapeUntrusted(next)}`));
  }
  if (different.length > SHOWN) await context.say(context.err.dim(`  and ${different.length - SHOWN} more`));
}

async function completeLog(context: Context, sandbox: string): Promise<readonly Json[]> {
  const deadline = performance.now() + COMPLETE_LIMIT_MS;
  for (;;) {
    const request = { workspaceScope: context.scope, sandbox, lines: LINES };
    const { logs } = await context.call("GetSandboxLogs", request, { timeoutMs: LIMIT_MS });
    const lines = Array.isArray(logs) ? logs.map(object) : [];
    const ended = lines.some((line) => line["source"] === "gateway" && ENDED.test(text(line["message"])));
    if (ended || performance.now() > deadline) return lines;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

function withoutPid(what: string): string {
  return what.replace(/\(\d+\)/, "");
}

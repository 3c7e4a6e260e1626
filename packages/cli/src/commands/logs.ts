import { escapeUntrusted } from "@openshell/base/escape.ts";
import type { Args, CommandSpec } from "../args.ts";
import { type Context, wholeNumber } from "../context.ts";
import { EXIT, quote, usageError } from "../errors.ts";
import { parseDenial } from "../model/denials.ts";
import { sandboxName } from "../model/last-sandbox.ts";
import { object, text } from "../model/sandbox.ts";
import { Interruption } from "../terminal/interruption.ts";
import { streamJson } from "../transport/json-stream.ts";
import type { Json } from "../transport/unary.ts";

export const spec: CommandSpec = {
  path: ["logs"],
  summary: "show or follow the log of a sandbox",
  positionals: [{ name: "NAME", names: "sandboxes" }],
  flags: [
    { long: "lines", short: "n", value: "N", help: "how many of the newest lines (default: 200)" },
    { long: "tail", short: "f", help: "go on with new lines until interrupted or the sandbox is removed" },
    { long: "since", value: "DURATION", help: "leave out older lines: 30s, 5m, 2h" },
    {
      long: "source",
      value: "SOURCE",
      many: true,
      choices: ["gateway", "sandbox", "all"],
      help: "gateway, sandbox or all",
    },
    { long: "level", value: "LEVEL", choices: ["error", "warn", "info", "debug", "trace"], help: "least level" },
  ],
  about: ["Every decision of the policy is a line of source sandbox."],
  examples: ["openshell logs dev -f", "openshell logs dev --since 10m --level warn"],
};

const DEFAULT_LINES = 200;
const MAX_LINES = 100_000;
const UNITS: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3600 };
/** Longest line that is shown; the gateway cuts earlier. */
const MAX_CHARACTERS = 16_384;

export async function run(context: Context, args: Args): Promise<number> {
  const sandbox = await sandboxName(context, args.positionals[0]);
  const lines = wholeNumber(args.value("lines"), "lines", 1, MAX_LINES) ?? DEFAULT_LINES;
  const sources = args.values("source").filter((source) => source !== "all");
  const level = (args.value("level") ?? "").toUpperCase();
  const since = sinceTime(args.value("since"));
  const shared = { workspaceScope: context.scope, sandbox, ...(since === undefined ? {} : { sinceTime: since }) };
  if (!args.has("tail")) {
    const answer = await context.call("GetSandboxLogs", { ...shared, lines, sources, minLevel: level });
    const logs = Array.isArray(answer["logs"]) ? answer["logs"].map(object) : [];
    for (const line of logs) await context.print(formatLine(line) + nextLine(context, line));
    if (since !== undefined && Number(answer["bufferTotal"] ?? 0) > logs.length && logs.length >= lines) {
      await context.warn(`only the newest ${lines} lines are shown; -n shows more`);
    }
    return EXIT.ok;
  }
  const target = await context.ensureGateway();
  using interruption = Interruption.listen();
  const request = { ...shared, followLogs: true, logTailLines: lines, logSources: sources, logMinLevel: level };
  try {
    for await (const event of streamJson(target.endpoint, "WatchSandbox", request, interruption.atOnce)) {
      const log = event["log"] === undefined ? undefined : object(event["log"]);
      if (log !== undefined) await context.print(formatLine(log) + nextLine(context, log));
      const warning = object(event["warning"])["message"];
      if (warning !== undefined) await context.warn(escapeUntrusted(text(warning)));
    }
    return EXIT.ok;
  } catch (error) {
    if (interruption.signalled !== undefined) return interruption.exitCode(EXIT.failure);
    throw error;
  }
}

/** For a person: what a refusal advises, which the line itself has in a form for programs. */
function nextLine(context: Context, line: Json): string {
  if (context.surroundings.stdout.isTTY !== true || text(line["source"]) !== "sandbox") return "";
  const next = parseDenial(text(line["message"]))?.next ?? "";
  return next === "" ? "" : `${context.out.dim(`  next: ${escapeUntrusted(next, MAX_CHARACTERS)}`)}\n`;
}

/** `[1767225600.000] [sandbox] [INFO ] [target] message k=v`. */
export function formatLine(line: Json): string {
  const time = new Date(text(line["eventTime"]));
  const seconds = Number.isNaN(time.getTime()) ? "-" : (time.getTime() / 1000).toFixed(3);
  const fields = Object.entries(object(line["fields"]))
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([key, value]) => ` ${key}=${text(value)}`)
    .join("");
  const source = (text(line["source"]) || "gateway").padEnd(7);
  const level = (text(line["level"]) || "INFO").padEnd(5);
  const head = `[${seconds}] [${source}] [${level}] [${text(line["target"])}] `;
  return `${escapeUntrusted(head + text(line["message"]) + fields, MAX_CHARACTERS)}\n`;
}

function sinceTime(given: string | undefined): string | undefined {
  if (given === undefined) return undefined;
  const match = /^(\d{1,7})([smh])$/.exec(given);
  if (match === null) throw usageError(`--since ${quote(given)} is no duration`, "Write 30s, 5m or 2h");
  return new Date(Date.now() - Number(match[1]) * UNITS[match[2]!]! * 1000).toISOString();
}

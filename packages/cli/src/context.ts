import { escapeUntrusted } from "@openshell/base/escape.ts";
import { readGatewayRecord } from "@openshell/base/gateway-record.ts";
import { isAlive } from "@openshell/base/process-identity.ts";
import type { Args } from "./args.ts";
import { CliError, quote, usageError } from "./errors.ts";
import { needsStart } from "./gateway/record.ts";
import { type GatewayChoice, resolveGateway, type Target } from "./gateway/resolve.ts";
import { type ColorChoice, type Style, styleFor } from "./output/style.ts";
import { writeAll } from "./output/terminal.ts";
import { describeEndpoint } from "./transport/endpoint.ts";
import type { CallOptions, Json } from "./transport/unary.ts";
import { callUnary } from "./transport/unary.ts";
import { UnreachableError } from "./transport/unreachable.ts";

/** Characters of one line on standard error. */
const MAX_LINE = 2048;

/** Process facts a command may use; tests pass their own. */
export interface Surroundings {
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly cwd: string;
  readonly uid: number;
  readonly home: string;
  /** The command line as bytes, since strings cannot hold all that a shell may pass. */
  readonly commandLine?: () => Uint8Array;
  readonly stdin: NodeJS.ReadStream;
  readonly stdout: NodeJS.WriteStream;
  readonly stderr: NodeJS.WriteStream;
}

/** What a command works with: its arguments, the gateway, and two styled streams. */
export class Context {
  readonly args: Args;
  readonly surroundings: Surroundings;
  readonly out: Style;
  readonly err: Style;
  #target: Target | undefined;
  #ready = false;

  constructor(args: Args, surroundings: Surroundings) {
    this.args = args;
    this.surroundings = surroundings;
    const choice = (args.value("color") ?? "auto") as ColorChoice;
    this.out = styleFor(surroundings.stdout.isTTY === true, choice, surroundings.env);
    this.err = styleFor(surroundings.stderr.isTTY === true, choice, surroundings.env);
  }

  get env(): Readonly<Record<string, string | undefined>> {
    return this.surroundings.env;
  }

  get workspace(): string {
    return this.args.value("workspace") ?? "default";
  }

  /** `workspace_scope` of a request in this workspace. */
  get scope(): Json {
    return { workspace: this.workspace };
  }

  get target(): Target {
    this.#target ??= resolveGateway(this.gatewayChoice, this.surroundings);
    return this.#target;
  }

  get gatewayChoice(): GatewayChoice {
    const { args } = this;
    return {
      name: args.value("gateway"),
      endpoint: args.value("gateway-endpoint"),
      insecure: args.has("gateway-insecure"),
    };
  }

  get verbosity(): number {
    return this.args.count("verbose");
  }

  /** Makes sure that the gateway is there: starts or replaces the embedded one when needed. Once a command. */
  async ensureGateway(): Promise<Target> {
    const { target } = this;
    if (this.#ready) return target;
    if (target.kind === "embedded") {
      const reason = needsStart(target.paths);
      if (reason !== undefined) {
        const { startGateway } = await import("./gateway/start.ts");
        await startGateway(target, reason, this);
      }
    }
    this.#ready = true;
    if (this.verbosity > 0) await this.say(`openshell: gateway ${target.name} at ${describeEndpoint(target.endpoint)}`);
    return target;
  }

  /** A unary call. The embedded gateway is started when it turns out not to answer. */
  async call(method: string, message: Json, options: CallOptions = {}): Promise<Json> {
    const target = await this.ensureGateway();
    const started = performance.now();
    try {
      const answer = await callUnary(target.endpoint, method, message, options);
      if (this.verbosity > 1) await this.say(`openshell: ${method}: ${(performance.now() - started).toFixed(1)} ms`);
      return answer;
    } catch (error) {
      // The socket file of a gateway that was killed is still there; nothing of the call was sent.
      if (!(error instanceof UnreachableError) || target.kind !== "embedded") throw error;
      const { startGateway } = await import("./gateway/start.ts");
      await startGateway(target, { kind: "not-running" }, this);
      return callUnary(target.endpoint, method, message, options);
    }
  }

  /**
   * Starts the embedded gateway again if it crashed: its record is there and its process is not. One that somebody stopped
   * stays stopped.
   */
  async recoverGateway(): Promise<void> {
    const { target } = this;
    if (target.kind !== "embedded") return;
    const record = readGatewayRecord(target.paths);
    if (record === undefined || isAlive(record)) return;
    const { startGateway } = await import("./gateway/start.ts");
    await startGateway(target, { kind: "not-running" }, this);
  }

  print(text: string | Uint8Array): Promise<void> {
    return writeAll(this.surroundings.stdout, text);
  }

  /** A line on standard error. */
  say(text: string): Promise<void> {
    return writeAll(this.surroundings.stderr, `${text}\n`);
  }

  /** Plain text; what a terminal would obey is escaped. */
  success(text: string): Promise<void> {
    return this.say(`${this.err.green(this.err.bold("✓"))} ${escapeUntrusted(text, MAX_LINE)}`);
  }

  /** As {@link success}. */
  warn(text: string): Promise<void> {
    return this.say(`${this.err.yellow("!")} ${escapeUntrusted(text, MAX_LINE)}`);
  }

  /** The value as JSON or YAML, or undefined for the table form. */
  get outputFormat(): "table" | "json" | "yaml" {
    return (this.args.value("output") ?? "table") as "table" | "json" | "yaml";
  }

  async printStructured(value: unknown, format: "json" | "yaml"): Promise<void> {
    if (format === "json") return this.print(`${JSON.stringify(value, undefined, 2)}\n`);
    const { toYaml } = await import("./output/structured.ts");
    return this.print(toYaml(value));
  }
}

/** `-o` as most commands take it. */
export const OUTPUT_FLAG = {
  long: "output",
  short: "o",
  value: "FORMAT",
  choices: ["table", "yaml", "json"],
  help: "table, yaml or json",
} as const;

/** `KEY=VALUE` pairs of a repeatable option. */
export function pairs(values: readonly string[], option: string): Record<string, string> {
  const result: Record<string, string> = {};
  for (const text of values) {
    const at = text.indexOf("=");
    // What is no name may be the value, and that a secret.
    if (at <= 0) {
      const shown = /^[A-Z_][A-Z0-9_]{0,63}$/.test(text) ? ` ${text}` : "";
      throw usageError(`--${option}${shown} is no KEY=VALUE`, `Write --${option} KEY=VALUE`);
    }
    result[text.slice(0, at)] = text.slice(at + 1);
  }
  return result;
}

/** A whole number of an option. */
export function wholeNumber(text: string | undefined, option: string, least: number, most: number): number | undefined {
  if (text === undefined) return undefined;
  const value = Number(text);
  if (!/^\d+$/.test(text) || value < least || value > most) {
    throw usageError(`--${option} ${quote(text)} is not possible`, `Use a whole number from ${least} to ${most}`);
  }
  return value;
}

/** Says that an answer of the gateway lacks something it must have. */
export function missingInAnswer(what: string): CliError {
  return new CliError(`the gateway's answer has no ${what}`, {
    code: "answer_incomplete",
    next: "Compare `openshell status` with `openshell --version`",
  });
}

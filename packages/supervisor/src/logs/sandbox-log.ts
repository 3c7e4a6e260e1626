import type { Clock } from "@openshell/base";
import type { LogPusher } from "./log-pusher.ts";

/** Where a sandbox's own lines go: its log at the gateway, and the host's log file. No secret may be passed in. */
export class SandboxLog {
  readonly #pusher: LogPusher;
  readonly #clock: Clock;
  readonly #mirror:
    | ((level: "info" | "warn" | "error", message: string, fields: Readonly<Record<string, string>>) => void)
    | undefined;

  constructor(
    pusher: LogPusher,
    clock: Clock,
    mirror?: (level: "info" | "warn" | "error", message: string, fields: Readonly<Record<string, string>>) => void,
  ) {
    this.#pusher = pusher;
    this.#clock = clock;
    this.#mirror = mirror;
  }

  info(message: string, fields: Readonly<Record<string, string>> = {}): void {
    this.#add("info", "INFO", message, fields);
  }

  warn(message: string, fields: Readonly<Record<string, string>> = {}): void {
    this.#add("warn", "WARN", message, fields);
  }

  error(message: string, fields: Readonly<Record<string, string>> = {}): void {
    this.#add("error", "ERROR", message, fields);
  }

  /** The shorthand line of a security event. */
  event(line: string): void {
    this.#pusher.add({ timeMs: this.#clock.now(), level: "OCSF", target: "ocsf", message: line });
  }

  #add(
    method: "info" | "warn" | "error",
    level: string,
    message: string,
    fields: Readonly<Record<string, string>>,
  ): void {
    this.#pusher.add({ timeMs: this.#clock.now(), level, target: "openshell::supervisor", message, fields });
    this.#mirror?.(method, message, fields);
  }
}

import { type Clock, escapeUntrusted } from "@openshell/base";
import type { LogPusher } from "./log-pusher.ts";

/** Where a sandbox's own lines go: its log at the gateway, and the host's log file. No secret may be passed in. */
export class SandboxLog {
  readonly #pusher: LogPusher;
  readonly #clock: Clock;
  readonly #redact: (text: string) => string;
  readonly #mirror:
    | ((level: "info" | "warn" | "error", message: string, fields: Readonly<Record<string, string>>) => void)
    | undefined;

  constructor(
    pusher: LogPusher,
    clock: Clock,
    redact: (text: string) => string,
    mirror?: (level: "info" | "warn" | "error", message: string, fields: Readonly<Record<string, string>>) => void,
  ) {
    this.#pusher = pusher;
    this.#clock = clock;
    this.#redact = redact;
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

  #add(method: "info" | "warn" | "error", level: string, text: string, fields: Readonly<Record<string, string>>): void {
    const message = escapeUntrusted(this.#redact(text), 4_096);
    this.#pusher.add({ timeMs: this.#clock.now(), level, target: "openshell::supervisor", message, fields });
    this.#mirror?.(method, message, fields);
  }
}

import { create } from "@bufbuild/protobuf";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import {
  type LogBatch,
  LogBatchSchema,
  type LogLine,
  LogLineSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { escapeUntrusted } from "@openshell/base";
import { Limits } from "../limits.ts";

export interface LogEntry {
  readonly timeMs: number;
  /** INFO, WARN, ERROR or OCSF. */
  readonly level: string;
  readonly target: string;
  readonly message: string;
  readonly fields?: Readonly<Record<string, string>>;
}

/**
 * Lines of one sandbox on their way to the gateway. Never waits: beyond the limits lines are dropped and counted, so an
 * agent that causes events cannot slow its own data path or grow this process.
 */
export class LogPusher {
  #lines: LogLine[] = [];
  #bytes = 0;
  #dropped = 0n;
  #send: ((batch: LogBatch) => boolean) | undefined;
  #timer: NodeJS.Timeout | undefined;

  /**
   * Where batches go while a session is up; undefined keeps lines (bounded) for the next session. False: the batch was not
   * taken, its lines are dropped and counted.
   */
  connect(send: ((batch: LogBatch) => boolean) | undefined): void {
    this.#send = send;
    if (send !== undefined && this.#lines.length > 0) this.#schedule();
  }

  add(entry: LogEntry): void {
    const message = escapeUntrusted(entry.message, 4_096);
    if (this.#lines.length >= Limits.logQueueLines || this.#bytes + message.length > Limits.logBatchBytes) {
      this.#dropped += 1n;
      return;
    }
    this.#lines.push(
      create(LogLineSchema, {
        time: timestampFromMs(entry.timeMs),
        level: entry.level,
        target: entry.target,
        message,
        fields: { ...entry.fields },
        source: "sandbox",
      }),
    );
    this.#bytes += message.length;
    if (this.#send !== undefined) this.#schedule();
  }

  /** Sends what is waiting, now. */
  flush(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const send = this.#send;
    if (send === undefined) return;
    while (this.#lines.length > 0) {
      const lines = this.#lines.splice(0, Limits.logBatchLines);
      if (send(create(LogBatchSchema, { lines, dropped: this.#dropped }))) this.#dropped = 0n;
      else this.#dropped += BigInt(lines.length);
    }
    this.#bytes = 0;
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#send = undefined;
    this.#lines = [];
  }

  #schedule(): void {
    this.#timer ??= setTimeout(() => this.flush(), Limits.logFlushMs);
  }
}

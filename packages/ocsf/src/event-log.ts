/**
 * Events of one sandbox into files: a shorthand line each, and a JSON record each when that is switched on. Emitting
 * never waits and never throws; what is lost is counted and told by an event of its own.
 */
import type { Clock } from "@openshell/base/clock.ts";
import type { OcsfEvent } from "./events.ts";
import { DenialFolder } from "./fold.ts";
import { type RecordContext, toRecord } from "./record.ts";
import { shorthand, shorthandLine } from "./shorthand.ts";
import { RotatingFile } from "./writer.ts";

/** The web's random identifiers, which Node has too. */
declare const crypto: { randomUUID(): string };

/** Room for the events of one sandbox. */
export const EventLimit = {
  fileBytes: 64 * 1024 * 1024,
  /** JSON records, all files. */
  jsonBytes: 192 * 1024 * 1024,
  /** Shorthand lines, all files; with the JSON records 256 MiB. */
  lineBytes: 64 * 1024 * 1024,
  /** One shorthand file: a quarter of their room, so that a rotation keeps most of the past. */
  lineFileBytes: 16 * 1024 * 1024,
  /** Waiting to be written, for each of the two. */
  queueBytes: 4 * 1024 * 1024,
  /** After this long without a further event, folded denials are told, milliseconds. */
  foldDelay: 1000,
} as const;

export interface EventLogOptions {
  /** Folder of the sandbox's logs; exists, owned by us, 0700. */
  readonly directory: string;
  readonly context: RecordContext;
  readonly clock: Clock;
  /** Write JSON records too. Default: true. */
  readonly json?: boolean;
  /** Every written event's shorthand, for `logs`; must not throw and not wait. */
  readonly onLine?: (line: { readonly time: number; readonly text: string; readonly event: OcsfEvent }) => void;
  /** Failures of the file system. */
  readonly onError?: (error: unknown) => void;
}

export class EventLog implements AsyncDisposable {
  readonly #options: EventLogOptions;
  readonly #folder = new DenialFolder();
  readonly #lines: RotatingFile;
  readonly #records: RotatingFile;
  #json: boolean;
  #timer = false;
  readonly #stop = new AbortController();

  constructor(options: EventLogOptions) {
    this.#options = options;
    this.#json = options.json ?? true;
    const shared = {
      directory: options.directory,
      maxQueueBytes: EventLimit.queueBytes,
      clock: options.clock,
      onError: options.onError ?? (() => {}),
    };
    this.#lines = new RotatingFile({
      ...shared,
      prefix: "openshell",
      suffix: ".log",
      maxFileBytes: EventLimit.lineFileBytes,
      maxTotalBytes: EventLimit.lineBytes,
    });
    this.#records = new RotatingFile({
      ...shared,
      prefix: "openshell-ocsf",
      suffix: ".jsonl",
      maxFileBytes: EventLimit.fileBytes,
      maxTotalBytes: EventLimit.jsonBytes,
    });
  }

  /** Switches JSON records (the setting `ocsf_json_enabled`). */
  set json(enabled: boolean) {
    this.#json = enabled;
  }

  emit(event: OcsfEvent): void {
    for (const due of this.#folder.offer(event)) this.#write(due);
    if (this.#folder.pending) this.#scheduleFold();
  }

  /** Everything emitted so far is in the files, folded counts included. */
  async flush(): Promise<void> {
    this.#tellFolded();
    await Promise.all([this.#lines.flush(), this.#records.flush()]);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort();
    this.#tellFolded();
    await Promise.all([this.#lines[Symbol.asyncDispose](), this.#records[Symbol.asyncDispose]()]);
  }

  /** A program's log line beside the events: `<time> <LEVEL> <target>: <message>`. The text must be escaped and free of secrets. */
  line(time: number, level: string, target: string, message: string): void {
    this.#lines.append(`${new Date(time).toISOString()} ${level} ${target}: ${message}`);
  }

  #scheduleFold(): void {
    if (this.#timer) return;
    this.#timer = true;
    this.#options.clock.sleep(EventLimit.foldDelay, { signal: this.#stop.signal, unref: true }).then(
      () => {
        this.#timer = false;
        this.#tellFolded();
      },
      () => {
        this.#timer = false;
      },
    );
  }

  #tellFolded(): void {
    for (const event of this.#folder.drain()) this.#write(event);
  }

  #write(event: OcsfEvent): void {
    const dropped = this.#lines.takeDropped() + this.#records.takeDropped();
    if (dropped > 0) {
      this.#store({
        class: "base",
        time: event.time,
        severity: "medium",
        status: "failure",
        message: "events were lost: the log could not keep up or could not be written",
        attributes: { dropped },
      });
    }
    this.#store(event);
  }

  #store(event: OcsfEvent): void {
    this.#lines.append(shorthandLine(event));
    if (this.#json) this.#records.append(JSON.stringify(toRecord(event, this.#options.context, crypto.randomUUID())));
    this.#options.onLine?.({ time: event.time, text: shorthand(event), event });
  }
}

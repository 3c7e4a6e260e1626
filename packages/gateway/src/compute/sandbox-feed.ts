import { create } from "@bufbuild/protobuf";
import { type PlatformEvent, PlatformEventSchema, type SandboxLogLine, SandboxLogLineSchema } from "@openshell/api";
import type { LogBatch } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { toTimestamp } from "@openshell/api/times.ts";
import { escapeUntrusted } from "@openshell/base";
import { BoundedQueue } from "@openshell/base/queue.ts";
import {
  ALL_LOG_BYTES,
  ALL_LOG_LINES,
  LOG_BYTES,
  LOG_FIELDS,
  LOG_LINE_CHARACTERS,
  LOG_LINES,
  MAX_WATCHERS,
  PLATFORM_EVENTS,
  WATCH_QUEUE,
} from "./limits.ts";

/** One kept item; `sequence` is the position in the sandbox's space of cursors. */
export type FeedItem =
  | { readonly kind: "log"; readonly sequence: number; readonly line: SandboxLogLine }
  | { readonly kind: "event"; readonly sequence: number; readonly event: PlatformEvent };

/**
 * What a watcher receives live. `missed` counts items that it was too slow for, and comes in their place: right after the
 * last one before them, whose sequence is `after`.
 */
export type FeedNotice =
  | FeedItem
  | { readonly kind: "changed" }
  | { readonly kind: "gone" }
  | { readonly kind: "missed"; readonly count: number; readonly after: number };

interface Watcher {
  readonly queue: BoundedQueue<FeedNotice>;
  missed: number;
  /** The newest item that was queued, and the one after which the first was missed. */
  newest: number;
  gapAfter: number;
  changePending: boolean;
}

/** What all feeds hold together, and how room is made when it is too much. */
export interface LogBudget {
  lines: number;
  bytes: number;
  /** Called when the limits for all are passed. */
  reclaim(): void;
}

/**
 * The recent log lines and events of one sandbox, and those who watch it. Lives in memory: a restarted gateway begins a
 * new space of cursors.
 */
export class SandboxFeed {
  /** Names this space of cursors. */
  readonly space: string;
  readonly #sandboxId: string;
  readonly #logs: (FeedItem & { kind: "log" })[] = [];
  readonly #events: (FeedItem & { kind: "event" })[] = [];
  readonly #watchers = new Set<Watcher>();
  readonly #budget: LogBudget;
  #logBytes = 0;
  #sequence = 0;

  constructor(space: string, sandboxId: string, budget: LogBudget) {
    this.space = space;
    this.#sandboxId = sandboxId;
    this.#budget = budget;
  }

  /** Drops the oldest lines until no more than these are kept. */
  trimLogs(lines: number, bytes: number): void {
    while (this.#logs.length > lines || this.#logBytes > bytes) {
      const dropped = this.#logs.shift();
      if (dropped === undefined) return;
      const size = dropped.line.message.length;
      this.#logBytes -= size;
      this.#budget.lines -= 1;
      this.#budget.bytes -= size;
      this.#drop(dropped);
    }
  }

  /** Position of the newest item; 0 before the first. */
  get sequence(): number {
    return this.#sequence;
  }

  get logs(): readonly (FeedItem & { readonly kind: "log" })[] {
    return this.#logs;
  }

  get events(): readonly (FeedItem & { readonly kind: "event" })[] {
    return this.#events;
  }

  /** Everything after `sequence`, in order, or undefined when some of it was dropped already. */
  after(sequence: number): readonly FeedItem[] | undefined {
    if (sequence < this.#droppedThrough) return undefined;
    const kept = [...this.#logs, ...this.#events].filter((item) => item.sequence > sequence);
    return kept.toSorted((a, b) => a.sequence - b.sequence);
  }

  #droppedThrough = 0;

  addLines(batch: LogBatch): void {
    const sandboxId = this.#sandboxId;
    for (const line of batch.lines) {
      this.#addLine(
        create(SandboxLogLineSchema, {
          sandboxId,
          ...(line.time === undefined ? {} : { eventTime: line.time }),
          level: escapeUntrusted(line.level, 32),
          target: escapeUntrusted(line.target, 256),
          message: escapeUntrusted(line.message, LOG_LINE_CHARACTERS),
          source: line.source === "gateway" ? "gateway" : "sandbox",
          fields: escapedFields(line.fields),
        }),
      );
    }
    if (batch.dropped > 0n) {
      this.#addLine(
        create(SandboxLogLineSchema, {
          sandboxId,
          eventTime: batch.lines.at(-1)?.time ?? toTimestamp(Date.now()),
          level: "WARN",
          target: "openshell",
          message: `${batch.dropped} log lines were dropped at the sandbox's limit`,
          source: "sandbox",
        }),
      );
    }
  }

  /** Something of the sandbox's life: a platform event, and a line of the gateway in its log. */
  addEvent(facts: { type: "Normal" | "Warning"; reason: string; message: string }, nowMs: number): void {
    const event = create(PlatformEventSchema, { eventTime: toTimestamp(nowMs), source: "gateway", ...facts });
    const item = { kind: "event" as const, sequence: ++this.#sequence, event };
    this.#events.push(item);
    if (this.#events.length > PLATFORM_EVENTS) this.#drop(this.#events.shift());
    this.#publish(item);
    this.#addLine(
      create(SandboxLogLineSchema, {
        sandboxId: this.#sandboxId,
        eventTime: toTimestamp(nowMs),
        level: facts.type === "Warning" ? "WARN" : "INFO",
        target: "gateway",
        message: escapeUntrusted(`${facts.reason}: ${facts.message}`, LOG_LINE_CHARACTERS),
        source: "gateway",
      }),
    );
  }

  /** The sandbox's record changed. Watchers that have not seen the last change yet are told once. */
  changed(): void {
    for (const watcher of this.#watchers) {
      if (watcher.changePending) continue;
      watcher.changePending = watcher.queue.offer({ kind: "changed" });
    }
  }

  /** The sandbox's record is gone; every watch ends. */
  gone(): void {
    this.trimLogs(0, 0);
    for (const watcher of this.#watchers) {
      watcher.queue.offer({ kind: "gone" });
      watcher.queue.close();
    }
  }

  /** Live notices from now on. Undefined when too many watch already. Leaving the iteration ends the watch. */
  watch(signal: AbortSignal): AsyncIterable<FeedNotice> | undefined {
    if (this.#watchers.size >= MAX_WATCHERS) return undefined;
    const newest = this.#sequence;
    const queue = new BoundedQueue<FeedNotice>(WATCH_QUEUE);
    const watcher: Watcher = { queue, missed: 0, newest, gapAfter: newest, changePending: false };
    this.#watchers.add(watcher);
    const onAbort = (): void => watcher.queue.close();
    if (signal.aborted) onAbort();
    signal.addEventListener("abort", onAbort, { once: true });
    const watchers = this.#watchers;
    return (async function* () {
      try {
        for await (const notice of watcher.queue) {
          if (notice.kind === "changed") watcher.changePending = false;
          yield notice;
          const reached = "sequence" in notice && notice.sequence >= watcher.gapAfter;
          if (watcher.missed > 0 && reached) {
            const { missed: count, gapAfter: after } = watcher;
            watcher.missed = 0;
            yield { kind: "missed", count, after } as const;
          }
        }
      } finally {
        signal.removeEventListener("abort", onAbort);
        watchers.delete(watcher);
      }
    })();
  }

  #addLine(line: SandboxLogLine): void {
    const item = { kind: "log" as const, sequence: ++this.#sequence, line };
    this.#logs.push(item);
    const size = line.message.length;
    this.#logBytes += size;
    this.#budget.lines += 1;
    this.#budget.bytes += size;
    this.trimLogs(LOG_LINES, LOG_BYTES);
    if (this.#budget.lines > ALL_LOG_LINES || this.#budget.bytes > ALL_LOG_BYTES) this.#budget.reclaim();
    this.#publish(item);
  }

  #drop(item: FeedItem | undefined): void {
    if (item !== undefined && item.sequence > this.#droppedThrough) this.#droppedThrough = item.sequence;
  }

  #publish(item: FeedItem): void {
    for (const watcher of this.#watchers) {
      if (watcher.queue.offer(item)) {
        watcher.newest = item.sequence;
        continue;
      }
      if (watcher.missed === 0) watcher.gapAfter = watcher.newest;
      watcher.missed += 1;
    }
  }
}

/** Fields may quote what an agent chose; at most {@link LOG_FIELDS} are kept. */
function escapedFields(fields: Readonly<Record<string, string>>): Record<string, string> {
  const kept = Object.entries(fields).slice(0, LOG_FIELDS);
  return Object.fromEntries(kept.map(([key, value]) => [escapeUntrusted(key, 64), escapeUntrusted(value)]));
}

/** What every feed is cut to of its equal share when all hold too much: less than the share, so that it is not done for each line. */
const RECLAIMED = 7 / 8;

/** The feeds of all sandboxes that anything was said about. */
export class SandboxFeeds {
  readonly #newSpace: () => string;
  readonly #feeds = new Map<string, SandboxFeed>();
  readonly #budget: LogBudget = { lines: 0, bytes: 0, reclaim: () => this.#reclaim() };

  /** `newSpace`: a name that no feed had before, of this or another sandbox or gateway process: 16 hexadecimal digits. */
  constructor(newSpace: () => string) {
    this.#newSpace = newSpace;
  }

  of(sandboxId: string): SandboxFeed {
    let feed = this.#feeds.get(sandboxId);
    if (feed === undefined) {
      feed = new SandboxFeed(this.#newSpace(), sandboxId, this.#budget);
      this.#feeds.set(sandboxId, feed);
    }
    return feed;
  }

  /** Log lines kept of all sandboxes together. */
  get lines(): number {
    return this.#budget.lines;
  }

  /** The loudest lose their oldest lines; who holds less than an equal share keeps everything. */
  #reclaim(): void {
    const share = RECLAIMED / Math.max(1, this.#feeds.size);
    const lines = Math.floor(ALL_LOG_LINES * share);
    const bytes = Math.floor(ALL_LOG_BYTES * share);
    for (const feed of this.#feeds.values()) feed.trimLogs(lines, bytes);
  }

  remove(sandboxId: string): void {
    this.#feeds.get(sandboxId)?.gone();
    this.#feeds.delete(sandboxId);
  }
}

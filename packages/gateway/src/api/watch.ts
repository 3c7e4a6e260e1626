import { create } from "@bufbuild/protobuf";
import {
  SandboxPhase,
  type SandboxStreamEvent,
  SandboxStreamEventSchema,
  type WatchSandboxRequest,
} from "@openshell/api";
import { invalidField, outOfRange, resourceExhausted } from "@openshell/api/errors.ts";
import { namedWorkspace } from "@openshell/api/selectors.ts";
import { readTimestamp } from "@openshell/api/times.ts";
import type { OpenShellImpl } from "@openshell/api/unimplemented.ts";
import { MAX_WATCHERS } from "../compute/limits.ts";
import type { FeedItem, SandboxFeed } from "../compute/sandbox-feed.ts";
import { isTerminal } from "../compute/status.ts";
import { type ApiDeps, namedSandbox } from "./context.ts";
import { sandboxMessage } from "./convert.ts";
import { type LogFilter, logFilter, passesFilter } from "./log-filter.ts";

/** Lines of the tail when a request names no number. */
const DEFAULT_TAIL = 200;
const CURSOR = /^([0-9a-f]{16})-(\d{16})$/;

export function watchHandlers(deps: ApiDeps): Pick<OpenShellImpl, "watchSandbox"> {
  return {
    async *watchSandbox(request, context) {
      const record = await namedSandbox(deps, namedWorkspace(request.workspaceScope), request.sandbox);
      const sinceMs = readTimestamp(request.sinceTime, "since_time");
      const filter = logFilter(
        { sources: request.logSources, minLevel: request.logMinLevel, sinceMs },
        { sources: "log_sources", minLevel: "log_min_level" },
      );
      const feed = deps.feeds.of(record.id);
      const signal = AbortSignal.any([context.signal, deps.stopping]);
      // Subscribed before anything is read: nothing between the tail and the live part is lost, the sequence tells doubles.
      const live = feed.watch(signal);
      if (live === undefined)
        throw resourceExhausted(`more than ${MAX_WATCHERS} streams watch this sandbox`, {
          next: "Close one of them, or try again",
          retryDelayMs: 1_000,
        });
      // What is there by now is the past of this stream, whenever its reader comes to read it; everything later is live.
      const past = feed.sequence;
      const notices = live[Symbol.asyncIterator]();
      try {
        const current = await deps.store.sandboxes.byId(record.id);
        if (current === undefined) {
          deps.feeds.remove(record.id);
          return;
        }
        yield snapshot(current);
        if (request.stopOnTerminal && stops(current.status.phase)) return;
        yield* replay(request, feed, filter, past);
        let seen = past;
        for (;;) {
          const next = await notices.next();
          if (next.done) {
            // A stream that just ended would say that the sandbox is gone.
            deps.stopping.throwIfAborted();
            return;
          }
          const notice = next.value;
          if (notice.kind === "gone") return;
          if (notice.kind === "missed") yield warning(notice.count, cursorOf(feed, notice.after));
          else if (notice.kind === "changed") {
            const now = await deps.store.sandboxes.byId(record.id);
            if (now === undefined) return;
            if (request.followStatus) yield snapshot(now);
            if (request.stopOnTerminal && stops(now.status.phase)) {
              if (!request.followStatus) yield snapshot(now);
              return;
            }
          } else if (notice.sequence > seen) {
            seen = notice.sequence;
            const follow = notice.kind === "log" ? request.followLogs : request.followEvents;
            if (follow && wanted(notice, filter)) yield item(feed, notice);
          }
        }
      } finally {
        await notices.return?.();
      }
    },
  };
}

/** What was kept: everything after the cursor, or the tails. */
function* replay(
  request: WatchSandboxRequest,
  feed: SandboxFeed,
  filter: LogFilter,
  past: number,
): Generator<SandboxStreamEvent> {
  const shown = (kept: FeedItem): boolean => kept.sequence <= past && wanted(kept, filter);
  if (request.resumeAfterCursor !== "") {
    for (const kept of afterCursor(request.resumeAfterCursor, feed)) {
      const follow = kept.kind === "log" ? request.followLogs : request.followEvents;
      if (follow && shown(kept)) yield item(feed, kept);
    }
    return;
  }
  if (request.followLogs) {
    const lines = request.logTailLines === 0 ? DEFAULT_TAIL : request.logTailLines;
    for (const kept of feed.logs.filter(shown).slice(-lines)) yield item(feed, kept);
  }
  if (request.followEvents && request.eventTail > 0) {
    for (const kept of feed.events.filter(shown).slice(-request.eventTail)) yield item(feed, kept);
  }
}

/** @throws ApiError INVALID_ARGUMENT for a cursor nobody issued, OUT_OF_RANGE for one whose place is no longer held. */
function afterCursor(cursor: string, feed: SandboxFeed): readonly FeedItem[] {
  const match = CURSOR.exec(cursor);
  if (match === null) throw invalidField("resume_after_cursor", "is no cursor of this service; watch without one");
  const sequence = Number(match[2]);
  const own = match[1] === feed.space;
  if (own && sequence > feed.sequence) throw invalidField("resume_after_cursor", "is beyond everything that was sent");
  const kept = own ? feed.after(sequence) : undefined;
  if (kept === undefined) {
    throw outOfRange("the events after this cursor are no longer held", { next: "Watch again without a cursor" });
  }
  return kept;
}

function wanted(kept: FeedItem, filter: LogFilter): boolean {
  if (kept.kind === "log") return passesFilter(kept.line, filter);
  const time = kept.event.eventTime;
  const ms = time === undefined ? 0 : Number(time.seconds) * 1000 + Math.floor(time.nanos / 1e6);
  return filter.sinceMs === undefined || ms >= filter.sinceMs;
}

function item(feed: SandboxFeed, kept: FeedItem): SandboxStreamEvent {
  const cursor = cursorOf(feed, kept.sequence);
  return kept.kind === "log"
    ? create(SandboxStreamEventSchema, { payload: { case: "log", value: kept.line }, cursor })
    : create(SandboxStreamEventSchema, { payload: { case: "event", value: kept.event }, cursor });
}

/** Fixed width, so that cursors of one stream compare bytewise as their positions do. */
function cursorOf(feed: SandboxFeed, sequence: number): string {
  return `${feed.space}-${String(sequence).padStart(16, "0")}`;
}

function snapshot(record: Parameters<typeof sandboxMessage>[0]): SandboxStreamEvent {
  return create(SandboxStreamEventSchema, { payload: { case: "sandbox", value: sandboxMessage(record) } });
}

/** Comes where the gap is: `cursor` is the greatest that this stream has had by then. */
function warning(count: number, cursor: string): SandboxStreamEvent {
  const message = `${count} events were skipped because the stream was not read fast enough; watch again with resume_after_cursor ${cursor} for those that are still held`;
  return create(SandboxStreamEventSchema, { payload: { case: "warning", value: { message } } });
}

function stops(phase: SandboxPhase): boolean {
  return phase === SandboxPhase.READY || isTerminal(phase);
}

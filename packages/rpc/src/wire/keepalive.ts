import type { Http2Session } from "node:http2";
import { StatusCode, StatusError } from "./status.ts";

/** How often the other side is pinged, and how long it may take to answer. Milliseconds. */
export interface Keepalive {
  readonly intervalMs: number;
  readonly timeoutMs: number;
}

/** Ends a session whose other side has vanished without closing the connection. */
export function keepAlive(session: Http2Session, { intervalMs, timeoutMs }: Keepalive): void {
  const timer = setInterval(() => {
    if (session.destroyed || session.connecting) return;
    const lost = setTimeout(() => {
      session.destroy(new StatusError(StatusCode.unavailable, "the other side does not answer pings"));
    }, timeoutMs).unref();
    session.ping(() => clearTimeout(lost));
  }, intervalMs).unref();
  session.once("close", () => clearInterval(timer));
}

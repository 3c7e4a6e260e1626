import type { HandlerContext } from "@connectrpc/connect";
import type { SessionState } from "../sessions/session.ts";
import { APPLY_WAIT_MS, MAX_APPLY_WAIT_MS } from "./limits.ts";

/** Request metadata: whole seconds that a change may wait for its outcome; 0 answers at the commit. */
export const WAIT_HEADER = "openshell-config-wait";
/** What is left of a caller's deadline for the answer itself. Milliseconds. */
const ANSWER_MARGIN_MS = 200;

/**
 * How long a change waits for its outcome before its caller is answered, in milliseconds: what the metadata say, else
 * {@link APPLY_WAIT_MS} for a sandbox whose supervisor is there, always within the caller's deadline. Something else than a
 * number of seconds counts as nothing said.
 */
export function waitLimit(
  context: Pick<HandlerContext, "requestHeader" | "timeoutMs">,
  session: SessionState | undefined,
): number {
  const said = context.requestHeader.get(WAIT_HEADER) ?? "";
  const connected = session === "accepted" || session === "ready";
  const usual = connected ? APPLY_WAIT_MS : 0;
  const wanted = /^\d{1,4}$/.test(said) ? Math.min(Number(said) * 1000, MAX_APPLY_WAIT_MS) : usual;
  const left = context.timeoutMs();
  return left === undefined ? wanted : Math.max(0, Math.min(wanted, left - ANSWER_MARGIN_MS));
}

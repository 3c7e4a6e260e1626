import type { DescMessage, MessageShape } from "@bufbuild/protobuf";
import type { HandlerContext } from "@connectrpc/connect";
import { requestIdError, resourceExhausted } from "@openshell/api/errors.ts";
import {
  MAX_ADMISSIONS_PER_CALLER,
  MAX_RECEIPT_BYTES,
  parseRequestId,
  REPLAY_WINDOW_MS,
  REPLAYED_HEADER,
  requestFingerprint,
} from "@openshell/api/request-id.ts";
import { callerOf } from "../auth/caller.ts";
import type { KeyedMutex } from "../compute/keyed-mutex.ts";
import type { GatewayDeps } from "../deps.ts";
import type { Command } from "../store/command.ts";
import { isStoreError } from "../store/errors.ts";
import type { AdmissionKey } from "../store/types.ts";

/** One request that carries a request id. */
export interface AdmissionRequest<Desc extends DescMessage> {
  readonly schema: Desc;
  readonly request: MessageShape<Desc> & { readonly requestId: string };
  readonly workspace: string;
  /**
   * Facts outside the message that belong to the intent, such as the sandbox that a name means now. The same request with other
   * facts is not another payload: what it asked for is no longer there.
   */
  readonly facts?: readonly string[];
  /** Before `request_id` in field paths. */
  readonly path?: string;
}

/**
 * At-most-once execution of a request id: `admit` is part of the transaction that stores the intent, `succeed` records the
 * result that a repetition gets. Without a request id both do nothing.
 */
export interface Admission {
  readonly admit: readonly Command<unknown>[];
  readonly succeed: (receipt: Uint8Array | string) => readonly Command<unknown>[];
}

export type AdmissionDeps = Pick<GatewayDeps, "store" | "clock" | "keys"> & {
  /** Requests with the same id one after the other: whoever comes while the first is at work is answered like it. */
  readonly sameRequest: KeyedMutex;
};

const none: Admission = { admit: [], succeed: () => [] };

/**
 * Runs a request at most once under its request id. `run` is given what it must add to its transactions; `replay` is called
 * instead with the receipt of an earlier success, and its answer is marked as replayed.
 *
 * @throws ApiError for a malformed id, another payload under the same id, or an unknown earlier outcome.
 */
export async function admitted<Desc extends DescMessage, Result>(
  deps: AdmissionDeps,
  context: Pick<HandlerContext, "responseHeader" | "method" | "values">,
  options: AdmissionRequest<Desc>,
  replay: (receipt: Uint8Array) => Promise<Result> | Result,
  run: (admission: Admission) => Promise<Result>,
): Promise<Result> {
  const requestId = parseRequestId(options.request.requestId, `${options.path ?? ""}request_id`);
  if (requestId === undefined) return await run(none);
  const caller = callerOf(context);
  const method = context.method.name;
  const key: AdmissionKey = {
    caller: JSON.stringify([caller.identityProvider, caller.subject]),
    method,
    workspace: options.workspace,
    requestId,
  };
  const payload = await requestFingerprint({
    mac: deps.keys.requestIds,
    method,
    schema: options.schema,
    message: options.request as MessageShape<Desc>,
  });
  const fingerprint = [payload, ...(options.facts ?? [])].join(" ");
  const facts: Known = { key, payload, fingerprint };
  return await deps.sameRequest.run(JSON.stringify(key), requestId, () => once(deps, context, facts, replay, run));
}

interface Known {
  readonly key: AdmissionKey;
  readonly payload: string;
  readonly fingerprint: string;
}

async function once<Result>(
  deps: AdmissionDeps,
  context: Pick<HandlerContext, "responseHeader">,
  { key, payload, fingerprint }: Known,
  replay: (receipt: Uint8Array) => Promise<Result> | Result,
  run: (admission: Admission) => Promise<Result>,
): Promise<Result> {
  const now = deps.clock.now();
  const { admissions } = deps.store;
  const known = await admissions.get(key);
  const expired = known?.completedAt !== undefined && known.completedAt < now - REPLAY_WINDOW_MS;
  if (known !== undefined && !expired) {
    if (known.fingerprint.split(" ", 1)[0] !== payload) throw requestIdError("REQUEST_ID_PAYLOAD_MISMATCH");
    if (known.fingerprint !== fingerprint) throw requestIdError("REQUEST_REPLAY_UNAVAILABLE");
    if (known.state !== "succeeded" || known.receipt === undefined) throw requestIdError("REQUEST_OUTCOME_UNCERTAIN");
    const replayed = await replay(known.receipt);
    context.responseHeader.set(REPLAYED_HEADER, "true");
    return replayed;
  }
  return await run({
    admit: [admissions.admit(key, fingerprint, now, now - REPLAY_WINDOW_MS, MAX_ADMISSIONS_PER_CALLER)],
    succeed: (receipt) => {
      const bytes = typeof receipt === "string" ? Buffer.from(receipt) : receipt;
      return bytes.length > MAX_RECEIPT_BYTES ? [] : [admissions.succeed(key, bytes, deps.clock.now())];
    },
  });
}

/** Translates what the admission's part of a transaction can meet; undefined for everything else. */
export function admissionError(error: unknown): Error | undefined {
  // Somebody admitted the same id between our look and our write: its outcome is not known yet.
  if (isStoreError(error, "store_already_exists") && error.subject === "request id")
    return requestIdError("REQUEST_OUTCOME_UNCERTAIN");
  if (isStoreError(error, "store_limit_reached") && error.subject === "request id") {
    return resourceExhausted(`more than ${MAX_ADMISSIONS_PER_CALLER} request ids are in use`, {
      next: "Wait until older ones expire, or send requests without request_id",
    });
  }
  return undefined;
}

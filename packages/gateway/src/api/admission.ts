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
import type { Caller } from "../auth/caller.ts";
import type { GatewayDeps } from "../deps.ts";
import type { Command } from "../store/command.ts";
import { isStoreError } from "../store/errors.ts";
import type { AdmissionKey } from "../store/types.ts";

/** One request that carries a request id. */
export interface AdmissionRequest<Desc extends DescMessage> {
  readonly method: string;
  readonly schema: Desc;
  readonly request: MessageShape<Desc>;
  readonly requestId: string;
  readonly caller: Caller;
  readonly workspace: string;
  /** Facts outside the message that belong to the intent. */
  readonly context?: readonly string[];
}

/**
 * At-most-once execution of a request id: `admit` is part of the transaction that stores the intent, `succeed` records the
 * result that a repetition gets. Without a request id both do nothing.
 */
export interface Admission {
  readonly admit: readonly Command<unknown>[];
  readonly succeed: (receipt: Uint8Array) => readonly Command<unknown>[];
}

export type AdmissionDeps = Pick<GatewayDeps, "store" | "clock" | "keys">;

const none: Admission = { admit: [], succeed: () => [] };

/**
 * Looks at a request id before anything is done. `replay` is called with the receipt of an earlier success and gives its
 * answer; otherwise the admission for a first execution is returned.
 *
 * @throws ApiError for a malformed id, another payload under the same id, or an unknown earlier outcome.
 */
export async function openAdmission<Desc extends DescMessage, Result>(
  deps: AdmissionDeps,
  options: AdmissionRequest<Desc>,
  replay: (receipt: Uint8Array) => Promise<Result>,
  context: Pick<HandlerContext, "responseHeader">,
): Promise<
  | { readonly admission: Admission; readonly replayed?: never }
  | { readonly replayed: Result; readonly admission?: never }
> {
  const requestId = parseRequestId(options.requestId);
  if (requestId === undefined) return { admission: none };
  const key: AdmissionKey = {
    caller: JSON.stringify([options.caller.identityProvider, options.caller.subject]),
    method: options.method,
    workspace: options.workspace,
    requestId,
  };
  const fingerprint = await requestFingerprint({
    mac: deps.keys.requestIds,
    method: options.method,
    schema: options.schema,
    message: options.request,
    ...(options.context === undefined ? {} : { context: options.context }),
  });
  const now = deps.clock.now();
  const known = await deps.store.admissions.get(key);
  const expired = known?.completedAt !== undefined && known.completedAt < now - REPLAY_WINDOW_MS;
  if (known !== undefined && !expired) {
    if (known.fingerprint !== fingerprint) throw requestIdError("REQUEST_ID_PAYLOAD_MISMATCH");
    if (known.state !== "succeeded" || known.receipt === undefined) throw requestIdError("REQUEST_OUTCOME_UNCERTAIN");
    const replayed = await replay(known.receipt);
    context.responseHeader.set(REPLAYED_HEADER, "true");
    return { replayed };
  }
  const { admissions } = deps.store;
  return {
    admission: {
      admit: [admissions.admit(key, fingerprint, now, now - REPLAY_WINDOW_MS, MAX_ADMISSIONS_PER_CALLER)],
      succeed: (receipt) =>
        receipt.length > MAX_RECEIPT_BYTES ? [] : [admissions.succeed(key, receipt, deps.clock.now())],
    },
  };
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

import type { DescMessage, MessageShape } from "@bufbuild/protobuf";
import { canonicalBytes } from "./canonical.ts";
import { invalidField } from "./errors.ts";
import { type Mac, macOf } from "./mac.ts";

/** Response metadata that marks a replayed success. */
export const REPLAYED_HEADER = "openshell-replayed";
/** How long a success can be replayed, from its durable completion: 24 h. Replays do not extend it. */
export const REPLAY_WINDOW_MS = 24 * 60 * 60 * 1000;
/** Admissions one caller may hold; expired ones are purged first. */
export const MAX_ADMISSIONS_PER_CALLER = 1000;
/** Stored result of one admitted request, in bytes; a larger one stays unresolved. */
export const MAX_RECEIPT_BYTES = 64 * 1024;

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
const NIL = "00000000-0000-0000-0000-000000000000";

/**
 * A request id in its canonical form (lower case), or undefined when the caller sent none. The identity of an id ignores case.
 *
 * @throws ApiError INVALID_ARGUMENT for anything but a hyphenated, non-nil UUID of 36 characters.
 */
export function parseRequestId(value: string, field = "request_id"): string | undefined {
  if (value === "") return undefined;
  const id = value.toLowerCase();
  if (!UUID.test(id)) throw invalidField(field, "must be a UUID of 36 characters with hyphens, or empty");
  if (id === NIL) throw invalidField(field, "must not be the nil UUID");
  return id;
}

/** What a fingerprint is taken of. */
export interface FingerprintInput<Desc extends DescMessage> {
  readonly mac: Mac;
  /** Full or short method name; the same payload to another method has another fingerprint. */
  readonly method: string;
  readonly schema: Desc;
  readonly message: MessageShape<Desc>;
  /** Facts outside the message that belong to the intent, such as the resolved sandbox id of an exec. Their order counts. */
  readonly context?: readonly string[];
}

/**
 * The keyed fingerprint of a request without its `request_id`, in hexadecimal (64 characters or more). Keyed, because payloads hold credentials
 * and a stored plain hash of a short one could be guessed. Replicas must share the key.
 */
export async function requestFingerprint<Desc extends DescMessage>(input: FingerprintInput<Desc>): Promise<string> {
  const payload = canonicalBytes(input.schema, input.message, ["request_id"]);
  const tag = await macOf(input.mac, "openshell request fingerprint v1", [
    input.method,
    payload,
    ...(input.context ?? []),
  ]);
  return Array.from(tag, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

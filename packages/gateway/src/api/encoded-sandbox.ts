import { create, toBinary } from "@bufbuild/protobuf";
import { ListSandboxesResponseSchema, type SandboxResponse, SandboxResponseSchema } from "@openshell/api";
import { encodedMessage } from "@openshell/rpc";
import type { SandboxRecord } from "../store/types.ts";
import { sandboxMessage } from "./convert.ts";

/** Encoded once for each record that the store gives again and again; gone with it. */
const responses = new WeakMap<SandboxRecord, { readonly bytes: Uint8Array; readonly message: SandboxResponse }>();

function encoded(record: SandboxRecord) {
  const known = responses.get(record);
  if (known !== undefined) return known;
  const bytes = toBinary(SandboxResponseSchema, create(SandboxResponseSchema, { sandbox: sandboxMessage(record) }));
  const made = { bytes, message: encodedMessage(SandboxResponseSchema, bytes) };
  // Only what nobody can change any more has one encoding for ever.
  if (Object.isFrozen(record)) responses.set(record, made);
  return made;
}

/** The answer that carries a sandbox, encoded already. */
export function encodedSandboxResponse(record: SandboxRecord): SandboxResponse {
  return encoded(record).message;
}

/**
 * A sandbox as it stands in SandboxResponse and, byte for byte, in ListSandboxesResponse: in both it is field 1, and
 * messages one after the other are one message with the fields of all.
 * https://protobuf.dev/programming-guides/encoding/#last-one-wins
 */
export function encodedSandbox(record: SandboxRecord): Uint8Array {
  return encoded(record).bytes;
}

/** A page of sandboxes, encoded already. */
export function encodedSandboxes(sandboxes: readonly Uint8Array[], nextPageToken: string) {
  const end =
    nextPageToken === ""
      ? []
      : [toBinary(ListSandboxesResponseSchema, create(ListSandboxesResponseSchema, { nextPageToken }))];
  return encodedMessage(ListSandboxesResponseSchema, Buffer.concat([...sandboxes, ...end]));
}

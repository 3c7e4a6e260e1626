import type { Meaning } from "./meaning.ts";

/** Status codes of calls, as the Connect protocol names gRPC's, in the order of their numbers (from 1). */
export const CALL_CODES = {
  canceled: ["The caller gave up.", "Try again"],
  unknown: [
    "Something in between, or a server that is no gateway, failed.",
    "Check the address with `openshell status`",
  ],
  invalid_argument: ["The request is wrong by itself.", "Correct what the message names"],
  deadline_exceeded: ["The answer did not come in time.", "Run `openshell status`; the request may have taken effect"],
  not_found: ["What was named does not exist, or not for you.", "List what there is"],
  already_exists: ["The name is taken.", "Choose another name, or delete what has it"],
  permission_denied: [
    "You may not do this.",
    "Ask an administrator of the gateway for the role or scope, or use another workspace",
  ],
  resource_exhausted: ["A limit is reached.", "Try again later, or remove what is no longer needed"],
  failed_precondition: ["It cannot be done in the present state.", "Look at the state: `openshell sandbox get NAME`"],
  aborted: ["Somebody changed it at the same time.", "Try again: somebody changed it at the same time"],
  out_of_range: ["A position that is no longer held.", "Start again from the beginning"],
  unimplemented: [
    "This gateway does not offer it.",
    "The gateway's version does not offer this; compare `openshell status` with `openshell --version`",
  ],
  internal: ["The gateway failed.", "The gateway's log has the cause; `openshell status` says where it is"],
  unavailable: ["No gateway answers, or it cannot now.", "Run `openshell status`, and try again"],
  data_loss: ["Stored data are damaged.", "Restore a backup of the gateway's state"],
  unauthenticated: [
    "The gateway does not know you.",
    "Use a client certificate that the gateway knows, or choose another gateway with --gateway",
  ],
} as const satisfies Readonly<Record<string, Meaning>>;

export type CallCode = keyof typeof CALL_CODES;

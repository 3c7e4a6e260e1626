import type { DenialName } from "@openshell/base/catalogue/denials.ts";
import type { RuntimeErrorCode } from "@openshell/base/catalogue/runtime.ts";

/** Why something was refused or failed on its way out; `http_…` names the rule of RFC 9112 that a request breaks. */
export type DenialCode = DenialName | RuntimeErrorCode | `http_${string}`;

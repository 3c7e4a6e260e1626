/** What `access:` stands for. Expansion happens when compiling; the policy keeps the word. */
import { type AccessPreset, EMPTY_RULE, type Endpoint, type RequestRule } from "./model.ts";

const METHODS: Readonly<Record<AccessPreset, readonly string[]>> = {
  "read-only": ["GET", "HEAD", "OPTIONS"],
  "read-write": ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH"],
  full: ["*"],
};

/** The allow rules of an endpoint that judges requests by method and path. */
export function effectiveAllowRules(endpoint: Endpoint): readonly RequestRule[] {
  if (endpoint.access === "") return endpoint.rules;
  return METHODS[endpoint.access].map((method) => ({ ...EMPTY_RULE, method, path: "**" }));
}

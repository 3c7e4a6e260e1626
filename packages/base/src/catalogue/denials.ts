import type { Meaning } from "./meaning.ts";

/** Why a connection or a request out of a sandbox was refused, or failed: in the answer's body and in events. */
export const DENIALS = {
  binary_not_allowed: [
    "A rule names host and port, but not this program.",
    "Add the program to binaries of the rule, or use one that is allowed",
  ],
  credential_endpoint_mismatch: [
    "A credential was used at an endpoint that it is not bound to.",
    "Bind it there with credential_binding, or send it where it belongs",
  ],
  credential_injection_failed: [
    "The credential of a plain request has no value now.",
    "Update the provider, or attach it",
  ],
  credential_requires_tls: [
    "A credential would go over plain http.",
    "Use https, or accept it in so many words in the policy",
  ],
  credential_unavailable: [
    "The credential has no value now: expired, detached, or of a provider that is not attached.",
    "Update the provider, or attach it",
  ],
  deny_rule: ["A deny rule matches the request.", "Remove or narrow the rule, or leave the request out"],
  encoded_slash: [
    "The path holds an encoded slash (%2F).",
    "Set allow_encoded_slash for the endpoint if its server needs it",
  ],
  endpoint_not_allowed: [
    "No rule names this host and port.",
    "Add an endpoint: openshell policy update NAME --add-endpoint HOST:PORT",
  ],
  invalid_credential_placeholder: [
    "A credential's placeholder stands where nothing is replaced.",
    "Send it in a header",
  ],
  invalid_proxy_request: [
    "The proxy was asked for something that is no absolute URL.",
    "Use the proxy variables that the sandbox sets",
  ],
  invalid_query: ["Host, port or path is malformed.", "Send a host name, a port and a path that are valid"],
  invalid_request_target: [
    "The request's target is not canonical.",
    "Send a path that starts with / and is encoded as RFC 3986 says",
  ],
  no_policy: ["The policy allows no network at all.", "Add a rule to network_policies"],
  not_permitted: [
    "No rule of the endpoint allows this request.",
    "Add an allow rule: openshell policy update NAME --add-allow HOST:PORT:METHOD:PATH",
  ],
  path_not_matched: [
    "No endpoint of this host and port covers the path.",
    "Add an endpoint with that path, or without one",
  ],
  policy_changed: ["A new policy no longer allows what was open.", "Open it again if the new policy allows it"],
  policy_denied: [
    "The policy does not allow it; the answer says which rule is missing.",
    "Follow next_steps of the answer, or ask the sandbox's owner",
  ],
  request_authority_mismatch: [
    "The request names another host than its connection.",
    "Open a connection to the host that the request is for",
  ],
  ssrf_denied: [
    "The name leads to an address that is not allowed: private, link-local or the gateway's own.",
    "Name its network in allowed_ips if it is meant",
  ],
  stale_policy: ["The connection belongs to a policy that has been replaced.", "Connect again"],
  too_many_connections: ["The sandbox has as many connections as it may.", "Close some, or open fewer at a time"],
  unsupported_l7_protocol: [
    "The connection speaks another protocol than the endpoint's.",
    "Speak HTTP/1.1 over TLS or plain, or change the endpoint's protocol",
  ],
  unsupported_middleware: [
    "A middleware that must not be left out selects the host, and this version cannot run it.",
    "Remove the middleware from the policy",
  ],
  unsupported_protocol: [
    "The endpoint's protocol, or its signing, cannot be judged by this version.",
    "Use protocol rest, or leave the endpoint out",
  ],
  unsupported_proxy_scheme: ["Only http:// can be asked for through the proxy.", "Use CONNECT for https"],
  use_connect: ["An https:// target was sent to the proxy as a plain request.", "Use CONNECT"],
} as const satisfies Readonly<Record<string, Meaning>>;

export type DenialName = keyof typeof DENIALS;

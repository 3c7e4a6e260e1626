/** Policies for tests, in the words of users. */

import type { Policy } from "../model.ts";
import { type ParseResult, parsePolicy } from "../parse.ts";

/** Every key an author can write. */
export const EVERY_KEY = `version: 1
filesystem_policy: {include_workdir: true, read_only: [/usr, /lib, /etc, /proc], read_write: [/tmp, /dev/null]}
landlock: {compatibility: hard_requirement}
process: {run_as_user: "1500", run_as_group: sandbox}
network_policies:
  tracker:
    name: tracker-api
    endpoints:
      - host: tracker.corp.example
        port: 443
        path: /v2/**
        protocol: rest
        enforcement: enforce
        allowed_ips: [10.20.0.0/16]
        allow_encoded_slash: true
        request_body_credential_rewrite: true
        rules:
          - allow: {method: GET, path: "/v2/issues/**", query: {state: "open*", tag: {any: ["bug-*", "ops-*"]}}}
          - allow: {method: POST, path: /v2/issues}
        deny_rules:
          - {method: "*", path: "/v2/issues/*/purge", query: {force: "true"}}
    binaries: [{path: /usr/bin/curl}, /usr/bin/wget]
  mirror:
    endpoints:
      - {host: "*.mirror.example.org", ports: [443, 8443], protocol: rest, enforcement: audit, access: read-only}
    binaries: [{path: "/usr/lib/jvm/*/bin/java"}]
  feed:
    endpoints:
      - host: feed.example.net
        port: 443
        protocol: websocket
        enforcement: enforce
        websocket_credential_rewrite: true
        rules: [{allow: {method: GET, path: /live}}, {allow: {method: WEBSOCKET_TEXT, path: /live}}]
        deny_rules: [{method: WEBSOCKET_TEXT, path: "/live/admin/**"}]
    binaries: [{path: /usr/local/bin/node}]
  graph:
    endpoints:
      - host: graph.example.net
        port: 443
        protocol: graphql
        enforcement: enforce
        persisted_queries: allow_registered
        graphql_max_body_bytes: 131072
        graphql_persisted_queries: {9f1c0d: {operation_type: query, operation_name: Viewer, fields: [viewer]}}
        rules: [{allow: {operation_type: query}}, {allow: {operation_type: mutation, operation_name: "Create*", fields: [createNote]}}]
        deny_rules: [{operation_type: mutation, fields: [deleteAll]}]
    binaries: [{path: /usr/local/bin/node}]
  tools:
    endpoints:
      - host: mcp.example.net
        port: 443
        path: /mcp
        protocol: mcp
        enforcement: enforce
        mcp: {versions: ["2025-11-25"], max_body_bytes: 131072, strict_tool_names: true, allow_all_known_mcp_methods: true}
        rules:
          - allow: {method: tools/call, tool: {any: [search_web, read_page]}}
          - allow: {method: tools/call, params: {name: list_files}}
        deny_rules: [{method: tools/call, tool: send_mail}]
    binaries: [{path: /usr/local/bin/node}]
  rpc:
    endpoints:
      - host: rpc.example.net
        port: 443
        protocol: json-rpc
        json_rpc: {max_body_bytes: 4096}
        rules: [{allow: {method: reports.search}}]
        deny_rules: [{method: reports.delete}]
    binaries: [{path: /usr/bin/python3.12}]
  signed:
    endpoints:
      - host: runtime.eu-central-1.example.com
        port: 443
        protocol: rest
        enforcement: enforce
        credential_binding: {provider: team-cloud}
        credential_signing: sigv4:body
        signing_service: runtime
        signing_region: eu-central-1
        rules: [{allow: {method: POST, path: "/model/*/invoke"}}]
    binaries: [{path: /usr/bin/python3.12}]
  database:
    endpoints: [{host: db.corp.example, port: 5432, protocol: tcp, allowed_ips: [10.20.9.0/24]}]
    binaries: [{path: /usr/bin/psql}]
  pinned:
    endpoints: [{host: smtp.corp.example, port: 465, tls: skip, allow_uninspected_credentials: true}]
    binaries: [{path: /usr/bin/msmtp}]
  by_address:
    endpoints: [{port: 9443, allowed_ips: [10.30.0.0/24]}]
    binaries: [{path: /usr/bin/curl}]
network_middlewares:
  redact:
    name: Redact keys
    middleware: acme/guard
    order: 10
    config: {mode: redact, nested: {list: [1, true, null, text]}}
    on_error: fail_closed
    endpoints: {include: ["*.example.net", tracker.corp.example], exclude: [feed.example.net]}
`;

/** One endpoint in one rule; `fields` is flow-style YAML without braces. */
export function endpointText(fields: string, binaries = '["/**"]'): string {
  return `version: 1\nnetwork_policies:\n  r:\n    endpoints:\n      - {${fields}}\n    binaries: ${binaries}\n`;
}

export function policyOf(text: string): Policy {
  const result = parsePolicy(text);
  if (!result.ok) throw new Error(result.violations.map((violation) => violation.message).join("; "));
  return result.policy;
}

export function codes(result: ParseResult): string[] {
  return result.ok ? [] : result.violations.map((violation) => violation.code);
}

/** One line an event, for people: `CLASS:ACTIVITY [SEV] ACTION fields [context]`. */
import {
  ACTIONS,
  CLASSES,
  DISPOSITIONS,
  FINDING_ACTIVITIES,
  HTTP_ACTIVITIES,
  LIFECYCLE_ACTIVITIES,
  NETWORK_ACTIVITIES,
  PROCESS_ACTIVITIES,
  SEVERITIES,
} from "./enums.ts";
import type {
  Attributes,
  BaseEvent,
  ConfigEvent,
  FindingEvent,
  HttpEvent,
  LifecycleEvent,
  NetworkEvent,
  OcsfEvent,
  ProcessEvent,
  ProcessReference,
  RuleReference,
} from "./events.ts";
import { MESSAGE_BYTES, REASON_BYTES, sentence, token } from "./text.ts";

export function shorthand(event: OcsfEvent): string {
  switch (event.class) {
    case "network":
      return network(event);
    case "http":
      return http(event);
    case "process":
      return process(event);
    case "finding":
      return finding(event);
    case "config":
      return config(event);
    case "lifecycle":
      return lifecycle(event);
    case "base":
      return base(event);
  }
}

/** The line as it stands in a file: time, `OCSF`, shorthand. */
export function shorthandLine(event: OcsfEvent): string {
  return `${new Date(event.time).toISOString()} OCSF ${shorthand(event)}`;
}

function head(event: OcsfEvent, activity: string): string {
  return `${CLASSES[event.class].prefix}:${activity.toUpperCase()} [${SEVERITIES[event.severity].tag}]`;
}

function action(event: { readonly action?: keyof typeof ACTIONS }): string | undefined {
  return event.action === undefined ? undefined : ACTIONS[event.action].label.toUpperCase();
}

function processText(reference: ProcessReference): string {
  return `${token(reference.name)}(${reference.pid})`;
}

function rule(reference: RuleReference | undefined): string | undefined {
  if (reference === undefined) return undefined;
  return `[policy:${token(reference.name) || "-"} engine:${token(reference.engine)}]`;
}

function join(...parts: readonly (string | undefined)[]): string {
  return parts.filter((part) => part !== undefined && part !== "").join(" ");
}

function hostPort(host: string, port: number): string {
  const name = token(host, 255);
  return `${name.includes(":") ? `[${name}]` : name}:${port}`;
}

/** Why something was refused, would have been (audit), or went wrong. What simply worked needs no reason. */
function reasonOf(event: NetworkEvent | HttpEvent): string | undefined {
  if (event.action === "denied") return event.reason ?? event.message;
  return (event.action === "observed" || event.status === "failure") && event.reason !== "" ? event.reason : undefined;
}

function network(event: NetworkEvent): string {
  const { destination, process: source, message } = event;
  const target =
    hostPort(destination.host, destination.port) + (event.protocol === undefined ? "" : `/${token(event.protocol)}`);
  const reason = reasonOf(event);
  const bare = source === undefined && event.rule === undefined && event.action === undefined;
  return join(
    head(event, NETWORK_ACTIVITIES[event.activity].label),
    action(event),
    source === undefined ? target : `${processText(source)} -> ${target}`,
    rule(event.rule),
    reason === undefined ? undefined : `[reason:${sentence(reason, REASON_BYTES)}]`,
    facts(event.attributes),
    bare && message !== undefined ? `[msg:${sentence(message, MESSAGE_BYTES)}]` : undefined,
  );
}

function http(event: HttpEvent): string {
  const { url } = event;
  const standard = url.scheme === "https" ? 443 : 80;
  const host = token(url.host, 255);
  const authority = url.port === standard ? (host.includes(":") ? `[${host}]` : host) : hostPort(url.host, url.port);
  const method = token(event.method, 32).toUpperCase();
  const reason = reasonOf(event);
  const context = [
    ...Object.entries(event.attributes ?? {}).map(([key, value]) => `${token(key)}:${token(String(value))}`),
    ...(reason === undefined ? [] : [`reason:${sentence(reason, REASON_BYTES)}`]),
  ];
  return join(
    head(event, HTTP_ACTIVITIES.has(method) ? method : "OTHER"),
    action(event),
    event.process === undefined ? undefined : `${processText(event.process)} ->`,
    `${method} ${url.scheme}://${authority}${token(url.path, 2048)}`,
    rule(event.rule),
    context.length === 0 ? undefined : `[${context.join(" ")}]`,
  );
}

function process(event: ProcessEvent): string {
  return join(
    head(event, PROCESS_ACTIVITIES[event.activity].label),
    processText(event.process),
    event.exitCode === undefined ? undefined : `[exit:${event.exitCode}]`,
    event.commandLine === undefined ? undefined : `[cmd:${sentence(event.commandLine, MESSAGE_BYTES)}]`,
    facts(event.attributes),
  );
}

function finding(event: FindingEvent): string {
  const kind = event.disposition === undefined ? FINDING_ACTIVITIES[event.activity] : DISPOSITIONS[event.disposition];
  const context = [
    `type:${token(event.uid)}`,
    ...Object.entries(event.attributes ?? {}).map(([key, value]) => `${token(key)}:${token(String(value))}`),
    ...(event.confidence === undefined ? [] : [`confidence:${event.confidence}`]),
  ];
  const title = sentence(event.title, MESSAGE_BYTES).replace(/["\\]/g, (character) => `\\${character}`);
  return join(head(event, kind.label), `"${title}"`, `[${context.join(" ")}]`);
}

function config(event: ConfigEvent): string {
  return join(
    head(event, token(event.state, 32)),
    sentence(event.message ?? "", REASON_BYTES),
    facts(event.attributes),
  );
}

function lifecycle(event: LifecycleEvent): string {
  return join(
    head(event, LIFECYCLE_ACTIVITIES[event.activity].label),
    token(event.application),
    event.status,
    facts(event.attributes),
  );
}

function base(event: BaseEvent): string {
  const few = Object.fromEntries(Object.entries(event.attributes ?? {}).slice(0, 3));
  return join(`EVENT [${SEVERITIES[event.severity].tag}]`, sentence(event.message ?? "", REASON_BYTES), facts(few));
}

function facts(attributes: Attributes | undefined): string | undefined {
  const entries = Object.entries(attributes ?? {});
  if (entries.length === 0) return undefined;
  return `[${entries.map(([key, value]) => `${token(key)}:${token(String(value))}`).join(" ")}]`;
}

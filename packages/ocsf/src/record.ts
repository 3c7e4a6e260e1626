/** Events as OCSF 1.8.0 JSON objects. Key order is fixed; absent values are left out; enums come as id and label. */
import {
  ACTIONS,
  type Action,
  CLASSES,
  CONFIDENCES,
  DISPOSITIONS,
  type Disposition,
  FINDING_ACTIVITIES,
  HTTP_ACTIVITIES,
  LIFECYCLE_ACTIVITIES,
  NETWORK_ACTIVITIES,
  OCSF_VERSION,
  PROCESS_ACTIVITIES,
  SEVERITIES,
  STATUSES,
} from "./enums.ts";
import type { Attributes, HttpEvent, NetworkEvent, OcsfEvent, ProcessReference } from "./events.ts";
import { field } from "./text.ts";

/** Who writes. The same for all events of a sandbox. */
export interface RecordContext {
  readonly sandboxId: string;
  readonly sandboxName: string;
  /** Version of the supervisor. */
  readonly productVersion: string;
  /** Name of the machine. */
  readonly hostname: string;
  readonly osName?: string;
}

export type OcsfRecord = { readonly [key: string]: unknown };

const PROFILES: Readonly<Record<OcsfEvent["class"], readonly string[]>> = {
  network: ["security_control", "network_proxy", "container", "host"],
  http: ["security_control", "network_proxy", "container", "host"],
  process: ["security_control", "container", "host"],
  finding: ["security_control", "container", "host"],
  config: ["security_control", "container", "host"],
  lifecycle: ["container", "host"],
  base: ["container", "host"],
};

/** `eventId` identifies the record (a UUID). */
export function toRecord(event: OcsfEvent, context: RecordContext, eventId: string): OcsfRecord {
  const kind = CLASSES[event.class];
  const activity = activityOf(event);
  const severity = SEVERITIES[event.severity];
  const status = event.status === undefined ? undefined : STATUSES[event.status];
  const reason = event.class === "network" || event.class === "http" ? event.reason : undefined;
  return compact({
    class_uid: kind.uid,
    class_name: kind.name,
    category_uid: kind.category,
    category_name: kind.categoryName,
    activity_id: activity.id,
    activity_name: activity.label,
    type_uid: kind.uid * 100 + activity.id,
    type_name: `${kind.name}: ${activity.label}`,
    time: event.time,
    severity_id: severity.id,
    severity: severity.label,
    status_id: status?.id,
    status: status?.label,
    message: event.message === undefined ? undefined : field(event.message),
    status_detail: reason === undefined ? undefined : field(reason),
    metadata: {
      version: OCSF_VERSION,
      product: { name: "OpenShell Sandbox Supervisor", vendor_name: "OpenShell", version: context.productVersion },
      profiles: PROFILES[event.class],
      uid: eventId,
    },
    device: compact({
      type_id: 99,
      type: "Sandbox",
      hostname: context.hostname,
      os: { name: context.osName ?? "Linux", type_id: 200, type: "Linux" },
      container: { name: context.sandboxName, uid: context.sandboxId },
    }),
    unmapped: attributes(event.attributes),
    ...extras(event),
  });
}

function activityOf(event: OcsfEvent): { readonly id: number; readonly label: string } {
  switch (event.class) {
    case "network":
      return NETWORK_ACTIVITIES[event.activity];
    case "http":
      return HTTP_ACTIVITIES.get(event.method.toUpperCase()) ?? { id: 99, label: "Other" };
    case "process":
      return PROCESS_ACTIVITIES[event.activity];
    case "finding":
      return FINDING_ACTIVITIES[event.activity];
    case "lifecycle":
      return LIFECYCLE_ACTIVITIES[event.activity];
    case "config":
      return { id: 1, label: "Log" };
    case "base":
      return { id: 99, label: "Other" };
  }
}

function extras(event: OcsfEvent): OcsfRecord {
  switch (event.class) {
    case "network":
      return {
        dst_endpoint: endpoint(event.destination),
        ...flow(event),
        connection_info: { protocol_name: event.protocol ?? "tcp" },
        is_src_dst_assignment_known: true,
      };
    case "http":
      return {
        http_request: {
          http_method: field(event.method.toUpperCase()),
          url: {
            scheme: event.url.scheme,
            hostname: field(event.url.host),
            path: field(event.url.path),
            port: event.url.port,
          },
        },
        ...compact({ http_response: event.responseCode === undefined ? undefined : { code: event.responseCode } }),
        dst_endpoint: endpoint(event.url),
        ...flow(event),
        observation_point_id: 2,
        observation_point: "Proxy",
      };
    case "process":
      return compact({
        process: processObject(event.process, event.commandLine),
        exit_code: event.exitCode,
        launch_type_id: event.activity === "launch" ? 1 : undefined,
        launch_type: event.activity === "launch" ? "Spawn" : undefined,
      });
    case "finding":
      return compact({
        finding_info: compact({
          uid: event.uid,
          title: field(event.title),
          desc: event.description === undefined ? undefined : field(event.description),
        }),
        evidences: event.attributes === undefined ? undefined : [{ data: attributes(event.attributes) }],
        remediation: event.remediation === undefined ? undefined : { desc: field(event.remediation) },
        is_alert: event.isAlert,
        ...pair("confidence", event.confidence === undefined ? undefined : CONFIDENCES[event.confidence]),
        ...decision(event),
      });
    case "config": {
      const known = { disabled: 1, enabled: 2 }[event.state.toLowerCase()];
      return { state_id: known ?? 99, state: field(event.state) };
    }
    case "lifecycle":
      return { app: { name: field(event.application), vendor_name: "OpenShell" } };
    case "base":
      return {};
  }
}

function flow(event: NetworkEvent | HttpEvent): OcsfRecord {
  return compact({
    actor: event.process === undefined ? undefined : { process: processObject(event.process) },
    firewall_rule:
      event.rule === undefined ? undefined : { name: field(event.rule.name), type: field(event.rule.engine) },
    ...decision(event),
  });
}

function decision(event: { readonly action?: Action; readonly disposition?: Disposition }): OcsfRecord {
  const implied = event.action === "denied" ? "blocked" : event.action === "allowed" ? "allowed" : undefined;
  const disposition = event.disposition ?? implied;
  return {
    ...pair("action", event.action === undefined ? undefined : ACTIONS[event.action]),
    ...pair("disposition", disposition === undefined ? undefined : DISPOSITIONS[disposition]),
  };
}

function pair(name: string, value: { readonly id: number; readonly label: string } | undefined): OcsfRecord {
  return value === undefined ? {} : { [`${name}_id`]: value.id, [name]: value.label };
}

function endpoint(target: { readonly host: string; readonly port: number; readonly ip?: string }): OcsfRecord {
  return compact({
    hostname: field(target.host),
    ip: target.ip === undefined ? undefined : field(target.ip),
    port: target.port,
  });
}

/** OCSF nests ancestors: each process holds its parent. */
function processObject(reference: ProcessReference, commandLine?: string): OcsfRecord {
  let parent: OcsfRecord | undefined;
  for (const name of [...(reference.ancestors ?? [])].slice(0, 16).reverse()) {
    parent = compact({ name: field(name), parent_process: parent });
  }
  return compact({
    name: field(reference.name),
    pid: reference.pid,
    cmd_line: commandLine === undefined ? undefined : field(commandLine),
    parent_process: parent,
  });
}

function attributes(values: Attributes | undefined): OcsfRecord | undefined {
  if (values === undefined || Object.keys(values).length === 0) return undefined;
  return Object.fromEntries(
    Object.entries(values).map(([key, value]) => [field(key), typeof value === "string" ? field(value) : value]),
  );
}

function compact(fields: Record<string, unknown>): OcsfRecord {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
}

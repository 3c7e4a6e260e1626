/** Numbers and labels of OCSF 1.8.0 (schema.ocsf.io), as far as our events use them. */

export const OCSF_VERSION = "1.8.0";

export const CLASSES = {
  network: { uid: 4001, name: "Network Activity", category: 4, categoryName: "Network Activity", prefix: "NET" },
  http: { uid: 4002, name: "HTTP Activity", category: 4, categoryName: "Network Activity", prefix: "HTTP" },
  process: { uid: 1007, name: "Process Activity", category: 1, categoryName: "System Activity", prefix: "PROC" },
  finding: { uid: 2004, name: "Detection Finding", category: 2, categoryName: "Findings", prefix: "FINDING" },
  config: { uid: 5019, name: "Device Config State Change", category: 5, categoryName: "Discovery", prefix: "CONFIG" },
  lifecycle: {
    uid: 6002,
    name: "Application Lifecycle",
    category: 6,
    categoryName: "Application Activity",
    prefix: "LIFECYCLE",
  },
  base: { uid: 0, name: "Base Event", category: 0, categoryName: "Uncategorized", prefix: "EVENT" },
} as const;
export type EventClass = keyof typeof CLASSES;

export const SEVERITIES = {
  informational: { id: 1, label: "Informational", tag: "INFO" },
  low: { id: 2, label: "Low", tag: "LOW" },
  medium: { id: 3, label: "Medium", tag: "MED" },
  high: { id: 4, label: "High", tag: "HIGH" },
  critical: { id: 5, label: "Critical", tag: "CRIT" },
  fatal: { id: 6, label: "Fatal", tag: "FATAL" },
} as const;
export type Severity = keyof typeof SEVERITIES;

export const NETWORK_ACTIVITIES = {
  open: { id: 1, label: "Open" },
  close: { id: 2, label: "Close" },
  reset: { id: 3, label: "Reset" },
  fail: { id: 4, label: "Fail" },
  refuse: { id: 5, label: "Refuse" },
  traffic: { id: 6, label: "Traffic" },
  listen: { id: 7, label: "Listen" },
  other: { id: 99, label: "Other" },
} as const;
export type NetworkActivity = keyof typeof NETWORK_ACTIVITIES;

/** By upper-case method; every other one is 99. */
export const HTTP_ACTIVITIES: ReadonlyMap<string, { readonly id: number; readonly label: string }> = new Map([
  ["CONNECT", { id: 1, label: "Connect" }],
  ["DELETE", { id: 2, label: "Delete" }],
  ["GET", { id: 3, label: "Get" }],
  ["HEAD", { id: 4, label: "Head" }],
  ["OPTIONS", { id: 5, label: "Options" }],
  ["POST", { id: 6, label: "Post" }],
  ["PUT", { id: 7, label: "Put" }],
  ["TRACE", { id: 8, label: "Trace" }],
  ["PATCH", { id: 9, label: "Patch" }],
]);

export const PROCESS_ACTIVITIES = {
  launch: { id: 1, label: "Launch" },
  terminate: { id: 2, label: "Terminate" },
} as const;
export type ProcessActivity = keyof typeof PROCESS_ACTIVITIES;

export const LIFECYCLE_ACTIVITIES = {
  start: { id: 3, label: "Start" },
  stop: { id: 4, label: "Stop" },
  restart: { id: 5, label: "Restart" },
  update: { id: 8, label: "Update" },
} as const;
export type LifecycleActivity = keyof typeof LIFECYCLE_ACTIVITIES;

export const FINDING_ACTIVITIES = {
  create: { id: 1, label: "Create" },
  update: { id: 2, label: "Update" },
  close: { id: 3, label: "Close" },
} as const;
export type FindingActivity = keyof typeof FINDING_ACTIVITIES;

export const ACTIONS = {
  allowed: { id: 1, label: "Allowed" },
  denied: { id: 2, label: "Denied" },
  observed: { id: 3, label: "Observed" },
  modified: { id: 4, label: "Modified" },
} as const;
export type Action = keyof typeof ACTIONS;

export const DISPOSITIONS = {
  allowed: { id: 1, label: "Allowed" },
  blocked: { id: 2, label: "Blocked" },
  detected: { id: 15, label: "Detected" },
  logged: { id: 17, label: "Logged" },
  rejected: { id: 25, label: "Rejected" },
  error: { id: 27, label: "Error" },
} as const;
export type Disposition = keyof typeof DISPOSITIONS;

export const STATUSES = {
  success: { id: 1, label: "Success" },
  failure: { id: 2, label: "Failure" },
} as const;
export type Status = keyof typeof STATUSES;

export const CONFIDENCES = {
  low: { id: 1, label: "Low" },
  medium: { id: 2, label: "Medium" },
  high: { id: 3, label: "High" },
} as const;
export type Confidence = keyof typeof CONFIDENCES;

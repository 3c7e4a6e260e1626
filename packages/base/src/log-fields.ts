/**
 * Names of structured log fields, once. A log line is found by these names years later, so they do not change.
 */
export const LogField = {
  sandboxId: "sandbox_id",
  sandboxName: "sandbox",
  workspace: "workspace",
  generation: "generation",
  hostId: "host_id",
  instanceId: "instance_id",
  sessionId: "session_id",
  relayId: "relay_id",
  updateId: "update_id",
  method: "method",
  code: "code",
  next: "next",
  durationMs: "duration_ms",
  pid: "pid",
  exitCode: "exit_code",
  signal: "signal",
  phase: "phase",
  provider: "provider",
  subject: "subject",
  path: "path",
} as const;

import { describe, expect, it } from "vitest";
import { CLASSES } from "./enums.ts";
import type { OcsfEvent } from "./events.ts";
import { toRecord } from "./record.ts";

const context = { sandboxId: "sb-1", sandboxName: "demo", productVersion: "0.1.0", hostname: "box" };
const time = 1_764_417_600_000;

const events: readonly OcsfEvent[] = [
  {
    class: "network",
    activity: "open",
    time,
    severity: "medium",
    action: "denied",
    process: { name: "/usr/bin/curl", pid: 7, ancestors: ["/bin/sh", "/bin/init"] },
    destination: { host: "example.com", port: 443 },
    rule: { name: "-", engine: "opa" },
    reason: "no matching policy",
  },
  {
    class: "http",
    time,
    severity: "informational",
    method: "get",
    action: "allowed",
    url: { scheme: "https", host: "example.com", port: 443, path: "/" },
    responseCode: 200,
  },
  { class: "process", activity: "launch", time, severity: "informational", process: { name: "sh", pid: 2 } },
  {
    class: "finding",
    activity: "create",
    time,
    severity: "high",
    uid: "u",
    title: "t",
    isAlert: true,
    attributes: { n: 1 },
  },
  { class: "config", time, severity: "informational", state: "enabled", message: "m" },
  { class: "lifecycle", activity: "stop", time, severity: "informational", application: "supervisor" },
  { class: "base", time, severity: "low", message: "m" },
];

describe("records", () => {
  it.each(events.map((event) => [event.class, event] as const))("%s has the base fields", (name, event) => {
    const record = toRecord(event, context, "id-1") as Record<string, never>;
    const kind = CLASSES[name];
    expect(record["class_uid"]).toBe(kind.uid);
    expect(record["type_uid"]).toBe(kind.uid * 100 + Number(record["activity_id"]));
    expect(record["type_name"]).toBe(`${kind.name}: ${record["activity_name"]}`);
    expect(record["time"]).toBe(time);
    expect(record["metadata"]).toMatchObject({ version: "1.8.0", uid: "id-1" });
    expect(record["device"]).toMatchObject({ type_id: 99, container: { uid: "sb-1", name: "demo" } });
    expect(Object.values(record)).not.toContain(undefined);
    expect(Object.keys(record).slice(0, 8)).toEqual([
      "class_uid",
      "class_name",
      "category_uid",
      "category_name",
      "activity_id",
      "activity_name",
      "type_uid",
      "type_name",
    ]);
    expect(JSON.parse(JSON.stringify(record))).toEqual(record);
  });

  it("writes enums as id and label, and what a denial implies", () => {
    const record = toRecord(events[0] as OcsfEvent, context, "x");
    expect(record).toMatchObject({
      severity_id: 3,
      severity: "Medium",
      action_id: 2,
      action: "Denied",
      disposition_id: 2,
      disposition: "Blocked",
      status_detail: "no matching policy",
      firewall_rule: { name: "-", type: "opa" },
      dst_endpoint: { hostname: "example.com", port: 443 },
      actor: {
        process: {
          name: "/usr/bin/curl",
          pid: 7,
          parent_process: { name: "/bin/sh", parent_process: { name: "/bin/init" } },
        },
      },
    });
  });

  it("leaves optional fields out", () => {
    const record = toRecord(events[2] as OcsfEvent, context, "x");
    for (const key of ["message", "status", "status_detail", "unmapped", "exit_code"])
      expect(record).not.toHaveProperty(key);
  });

  it("escapes what the agent chose", () => {
    const record = toRecord(
      { class: "process", activity: "launch", time, severity: "low", process: { name: "a\u202eb\u0000", pid: 1 } },
      context,
      "x",
    );
    expect(record["process"]).toMatchObject({ name: "a\\u202eb\\x00" });
  });
});

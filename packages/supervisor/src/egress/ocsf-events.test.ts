import { type OcsfEvent, shorthand, toRecord } from "@openshell/ocsf";
import { describe, expect, test } from "vitest";
import type { ConnectionEvent, RequestEvent } from "./events.ts";
import { OcsfEgressEvents } from "./ocsf-events.ts";

const owners = [{ pid: 64, process: { exe: "/usr/bin/curl", ancestors: ["/bin/sh"] }, digest: "d" }];
const connection: ConnectionEvent = {
  outcome: "allowed",
  origin: "explicit",
  host: "api.github.com",
  port: 443,
  owners,
  policy: "github",
  engine: "opa",
  code: "",
  reason: "",
  next: "",
  generation: 3,
};
const request: RequestEvent = {
  outcome: "allowed",
  origin: "transparent",
  method: "POST",
  scheme: "https",
  host: "api.github.com",
  port: 443,
  path: "/user",
  owners,
  policy: "github",
  engine: "l7",
  code: "",
  reason: "",
  next: "",
  status: 200,
  generation: 3,
};

function lines(run: (events: OcsfEgressEvents) => void): string[] {
  const seen: OcsfEvent[] = [];
  run(new OcsfEgressEvents({ emit: (event) => seen.push(event) }, () => 0));
  for (const event of seen)
    toRecord(event, { sandboxId: "s", sandboxName: "n", productVersion: "0", hostname: "h" }, "id");
  return seen.map(shorthand);
}

describe("events", () => {
  test("have the shapes that people grep for", () => {
    expect(lines((events) => events.connection(connection))[0]).toMatch(
      /^NET:OPEN \[INFO\] ALLOWED \/usr\/bin\/curl\(64\) -> api\.github\.com:443 \[policy:github engine:opa\]/,
    );
    const denied = {
      ...connection,
      outcome: "denied",
      policy: "",
      reason: "network connections not allowed by policy",
      code: "policy_denied",
    } as const;
    const line = lines((events) => events.connection(denied))[0];
    expect(line).toContain("NET:OPEN [MED] DENIED /usr/bin/curl(64) -> api.github.com:443 [policy:- engine:opa]");
    expect(line).toContain("[reason:network connections not allowed by policy]");
    expect(lines((events) => events.request(request))[0]).toMatch(
      /^HTTP:POST \[INFO\] ALLOWED .*POST https:\/\/api\.github\.com\/user \[policy:github engine:l7\]/,
    );
    const refused = {
      ...request,
      outcome: "denied",
      reason: "POST /user not permitted by policy",
      status: 403,
    } as const;
    expect(lines((events) => events.request(refused))[0]).toContain(
      "reason:L7_REQUEST deny POST api.github.com:443/user reason=POST /user not permitted by policy",
    );
  });

  test("findings are HIGH", () => {
    const finding = { uid: "openshell.x", title: "t", description: "d", host: "h", port: 1, owners, policy: "" };
    expect(lines((events) => events.finding(finding))[0]).toMatch(/^FINDING:\w+ \[HIGH\] "t" \[type:openshell\.x/);
  });

  test("a path cannot forge a line", () => {
    const forged = { ...request, path: "/a\nNET:OPEN [INFO] ALLOWED" };
    expect(lines((events) => events.request(forged))[0]).not.toContain("\n");
  });
});

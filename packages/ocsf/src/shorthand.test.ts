import { describe, expect, it } from "vitest";
import type { OcsfEvent } from "./events.ts";
import { shorthand, shorthandLine } from "./shorthand.ts";

const curl = { name: "/usr/bin/curl", pid: 64 };
const time = Date.UTC(2026, 10, 29, 12, 0, 0, 7);

describe("network lines", () => {
  it("shows who was allowed where by which rule", () => {
    const event: OcsfEvent = {
      class: "network",
      activity: "open",
      time,
      severity: "informational",
      action: "allowed",
      process: curl,
      destination: { host: "api.github.com", port: 443 },
      rule: { name: "github_api", engine: "opa" },
      reason: "must not be shown",
    };
    expect(shorthand(event)).toBe(
      "NET:OPEN [INFO] ALLOWED /usr/bin/curl(64) -> api.github.com:443 [policy:github_api engine:opa]",
    );
    expect(shorthandLine(event)).toMatch(/^2026-11-29T12:00:00\.007Z OCSF NET:OPEN /);
  });

  it("shows the reason of a denial", () => {
    expect(
      shorthand({
        class: "network",
        activity: "open",
        time,
        severity: "medium",
        action: "denied",
        process: curl,
        destination: { host: "httpbin.org", port: 443 },
        rule: { name: "-", engine: "opa" },
        reason: "no matching\npolicy",
      }),
    ).toBe(
      "NET:OPEN [MED] DENIED /usr/bin/curl(64) -> httpbin.org:443 [policy:- engine:opa] [reason:no matching policy]",
    );
  });

  it("needs no process", () => {
    const listen: OcsfEvent = {
      class: "network",
      activity: "listen",
      time,
      severity: "informational",
      destination: { host: "10.200.0.1", port: 3128 },
    };
    expect(shorthand(listen)).toBe("NET:LISTEN [INFO] 10.200.0.1:3128");
    expect(shorthand({ ...listen, message: "ready" })).toBe("NET:LISTEN [INFO] 10.200.0.1:3128 [msg:ready]");
  });

  it("brackets IPv6 addresses", () => {
    expect(
      shorthand({
        class: "network",
        activity: "open",
        time,
        severity: "informational",
        destination: { host: "2606:4700::1", port: 443 },
      }),
    ).toContain("[2606:4700::1]:443");
  });

  it("cannot be forged by a process name", () => {
    const line = shorthand({
      class: "network",
      activity: "open",
      time,
      severity: "medium",
      action: "denied",
      process: { name: "/tmp/x] [policy:all engine:opa]\nNET:OPEN [INFO] ALLOWED \u202eevil", pid: 1 },
      destination: { host: "h", port: 1 },
      rule: { name: "-", engine: "opa" },
    });
    expect(line).not.toContain("\n");
    expect(line).not.toContain("\u202e");
    expect(line.indexOf("[policy:")).toBe(line.lastIndexOf("[policy:"));
    expect(line).toContain("[policy:- engine:opa]");
  });

  it("cuts a long reason at a character border", () => {
    const line = shorthand({
      class: "network",
      activity: "open",
      time,
      severity: "medium",
      action: "denied",
      destination: { host: "h", port: 1 },
      reason: `${"x".repeat(255)}é and more`,
    });
    expect(line).toContain(`[reason:${"x".repeat(255)}...]`);
  });
});

describe("http lines", () => {
  const base: OcsfEvent = {
    class: "http",
    time,
    severity: "medium",
    method: "POST",
    action: "denied",
    url: { scheme: "https", host: "api.github.com", port: 443, path: "/user/repos" },
    rule: { name: "github_api", engine: "l7" },
    reason: "POST /user/repos not permitted by policy",
  };

  it("leaves the default port out", () => {
    expect(shorthand(base)).toBe(
      "HTTP:POST [MED] DENIED POST https://api.github.com/user/repos [policy:github_api engine:l7] [reason:POST /user/repos not permitted by policy]",
    );
  });

  it("shows another port, the process and attributes", () => {
    expect(
      shorthand({
        ...base,
        action: "allowed",
        severity: "informational",
        process: curl,
        url: { ...base.url, port: 8443 },
        attributes: { failed: false, note: "a b]" },
      }),
    ).toBe(
      "HTTP:POST [INFO] ALLOWED /usr/bin/curl(64) -> POST https://api.github.com:8443/user/repos [policy:github_api engine:l7] [failed:false note:a\\u{20}b\\u{5d}]",
    );
  });

  it("has one class for methods OCSF does not know", () => {
    expect(shorthand({ ...base, method: "PROPFIND" })).toMatch(/^HTTP:OTHER \[MED\] DENIED PROPFIND /);
  });
});

describe("other lines", () => {
  it("process", () => {
    expect(
      shorthand({
        class: "process",
        activity: "launch",
        time,
        severity: "informational",
        process: { name: "sleep", pid: 49 },
      }),
    ).toBe("PROC:LAUNCH [INFO] sleep(49)");
    expect(
      shorthand({
        class: "process",
        activity: "terminate",
        time,
        severity: "informational",
        process: { name: "sh", pid: 5 },
        exitCode: 3,
        commandLine: "sh -c 'exit 3'",
      }),
    ).toBe("PROC:TERMINATE [INFO] sh(5) [exit:3] [cmd:sh -c 'exit 3']");
  });

  it("finding, with a title that cannot end its quotes", () => {
    expect(
      shorthand({
        class: "finding",
        activity: "create",
        time,
        severity: "high",
        uid: "openshell.credentials.response_leak",
        title: 'Credential "sent" back',
        confidence: "high",
        attributes: { count: 1 },
      }),
    ).toBe(
      'FINDING:CREATE [HIGH] "Credential \\"sent\\" back" [type:openshell.credentials.response_leak count:1 confidence:high]',
    );
  });

  it("a request that audit let pass and a failed connection say why", () => {
    expect(
      shorthand({
        class: "http",
        time,
        method: "POST",
        url: { scheme: "https", host: "api.github.com", port: 443, path: "/x" },
        severity: "low",
        status: "success",
        action: "observed",
        reason: "POST /x not permitted by policy",
      }),
    ).toBe("HTTP:POST [LOW] OBSERVED POST https://api.github.com/x [reason:POST /x not permitted by policy]");
    expect(
      shorthand({
        class: "network",
        activity: "fail",
        time,
        severity: "low",
        status: "failure",
        action: "allowed",
        destination: { host: "api.github.com", port: 443 },
        reason: "The certificate has expired",
      }),
    ).toBe("NET:FAIL [LOW] ALLOWED api.github.com:443 [reason:The certificate has expired]");
  });

  it("config, lifecycle and base", () => {
    expect(
      shorthand({
        class: "config",
        time,
        severity: "informational",
        state: "loaded",
        message: "Policy loaded",
        attributes: { version: 3, hash: "abc" },
      }),
    ).toBe("CONFIG:LOADED [INFO] Policy loaded [version:3 hash:abc]");
    expect(
      shorthand({
        class: "lifecycle",
        activity: "start",
        time,
        severity: "informational",
        application: "supervisor",
        status: "success",
      }),
    ).toBe("LIFECYCLE:START [INFO] supervisor success");
    expect(
      shorthand({ class: "base", time, severity: "low", message: "m", attributes: { a: 1, b: 2, c: 3, d: 4 } }),
    ).toBe("EVENT [LOW] m [a:1 b:2 c:3]");
  });
});

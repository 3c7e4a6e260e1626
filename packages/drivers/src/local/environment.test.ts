import { describe, expect, it } from "vitest";
import { agentEnvironment } from "./environment.ts";

const environment = agentEnvironment({
  user: "sandbox",
  shell: "/bin/bash",
  hostPath: "/usr/bin:/root/bin:relative::/usr/share:.",
});

describe("agentEnvironment", () => {
  it("appends only visible folders of the host's PATH, the agent's own last", () => {
    expect(environment.PATH).toBe(
      "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/share:/sandbox/.local/bin:/sandbox/bin",
    );
  });
  it("points every client at the merged bundle, never at the inspection CA alone", () => {
    for (const name of [
      "SSL_CERT_FILE",
      "CURL_CA_BUNDLE",
      "GIT_SSL_CAINFO",
      "REQUESTS_CA_BUNDLE",
      "NODE_EXTRA_CA_CERTS",
      "DENO_CERT",
      "CARGO_HTTP_CAINFO",
      "PIP_CERT",
    ]) {
      expect([name, environment[name]]).toEqual([name, "/etc/openshell-tls/ca-bundle.pem"]);
    }
    expect(Object.values(environment).join()).not.toContain("openshell-ca.pem");
  });
  it("tells the JVM where the system has no store that could be replaced", () => {
    const input = { user: "sandbox", shell: "/bin/sh", hostPath: "" };
    expect(agentEnvironment({ ...input, coversJava: true })).not.toHaveProperty("JAVA_TOOL_OPTIONS");
    expect(agentEnvironment({ ...input, coversJava: false }).JAVA_TOOL_OPTIONS).toContain(
      "/etc/openshell-tls/cacerts.jks",
    );
  });
  it("names the proxy in every spelling and leaves loopback out of it", () => {
    for (const name of ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "grpc_proxy"]) {
      expect(environment[name]).toBe("http://127.0.0.1:3128");
    }
    expect(environment.NO_PROXY).toBe("127.0.0.1,localhost,::1");
    expect(environment.NODE_USE_ENV_PROXY).toBe("1");
  });
  it("passes nothing of the gateway's environment on but visible PATH entries", () => {
    expect(Object.keys(environment).filter((name) => /TOKEN|KEY|SECRET|SSH|XDG/.test(name))).toEqual([]);
  });
});

import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { parseFlags } from "./inputs.ts";
import { loadConfig } from "./load.ts";

let home: string;
beforeEach(() => {
  home = mkdtempSync(join(tmpdir(), "openshell-config-"));
});
afterEach(() => rmSync(home, { recursive: true }));

const load = (args: readonly string[] = [], env: Record<string, string> = {}) =>
  loadConfig(parseFlags(args), { uid: 1000, home, env });

function write(text: string, folder = "openshell"): string {
  const path = join(home, ".config", folder);
  mkdirSync(path, { recursive: true });
  writeFileSync(join(path, "gateway.toml"), text);
  return join(path, "gateway.toml");
}

const file = (gateway: string, rest = "") => `[openshell]\nversion = 2\n[openshell.gateway]\n${gateway}\n${rest}`;

const middleware = (keys: string) => `[[openshell.supervisor.middleware]]\n${keys}`;
const table = (keys: Readonly<Record<string, string | number | boolean | undefined>> = {}): string => {
  const all = { name: "guard", grpc_endpoint: "https://guard.example:8443", max_payload_bytes: 65_536, ...keys };
  const given = Object.entries(all).filter(([, value]) => value !== undefined);
  return middleware(given.map(([key, value]) => `${key} = ${JSON.stringify(value)}`).join("\n"));
};
const service = (keys: Parameters<typeof table>[0]) => file("", table(keys));

describe("loadConfig", () => {
  it("has defaults for everything", async () => {
    const { config, paths, file: read } = await load();
    expect(config).toEqual({
      name: "openshell",
      bind: { host: "127.0.0.1", port: 17670, chosen: false },
      health: undefined,
      metrics: undefined,
      logLevel: "info",
      disableTls: false,
      allowUnauthenticatedUsers: false,
      serverSans: [],
      computeDriver: "local",
      policyValidationFailureMode: "fail_closed",
      configConsistencyCheckMs: 30_000,
      supervisor: {
        placement: "workspace",
        minimumIsolation: [],
        network: { additionalCa: undefined, resolvers: [] },
        middleware: [],
      },
      local: { volumeRoots: [], table: {} },
    });
    expect(paths.state).toBe(join(home, ".local/state/openshell/openshell"));
    expect(read).toBeUndefined();
  });

  it("prefers a flag to the environment, that to the file, that to the default", async () => {
    write(file('bind_address = "127.0.0.1:1001"\nlog_level = "warn"\nserver_sans = ["a"]'));
    expect((await load()).config.bind).toEqual({ host: "127.0.0.1", port: 1001, chosen: true });
    expect((await load([], { OPENSHELL_SERVER_PORT: "1002" })).config.bind.port).toBe(1002);
    const both = await load(["--port", "1003", "--log-level=debug"], {
      OPENSHELL_SERVER_PORT: "1002",
      OPENSHELL_LOG_LEVEL: "",
    });
    expect(both.config).toMatchObject({ bind: { port: 1003 }, logLevel: "debug", serverSans: ["a"] });
    expect((await load(["--bind-address", "::1"])).config.bind).toMatchObject({ host: "::1", port: 17670 });
  });

  it("reads the gateway's own file before the shared one, and a named file before both", async () => {
    write(file('log_level = "warn"'));
    const own = write(file('log_level = "error"'), "openshell/work");
    expect(await load(["--name", "work"])).toMatchObject({ file: own, config: { name: "work", logLevel: "error" } });
    const named = join(home, "other.toml");
    await expect(load(["--config", named])).rejects.toThrow(/other\.toml: does not exist/);
    writeFileSync(named, "");
    expect(await load(["--config", named])).toMatchObject({ file: named, config: { logLevel: "info" } });
  });

  it("reads the tables beside the gateway's", async () => {
    const ca = join(home, "ca.pem");
    writeFileSync(ca, "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n");
    const network = `[openshell.supervisor]\nplacement = "sandbox"\nminimum_isolation = ["confined", "freezer"]\n[openshell.supervisor.network]\nadditional_ca_bundle = "${ca}"\nresolvers = ["10.0.0.1:53", "[2001:db8::1]:53"]`;
    write(file("", `${network}\n[local]\nvolume_roots = ["/srv"]`));
    const { config } = await load();
    expect(config.supervisor).toMatchObject({
      placement: "sandbox",
      minimumIsolation: ["confined", "freezer"],
      network: { additionalCa: { path: ca } },
    });
    expect(config.supervisor.network.resolvers).toEqual(["10.0.0.1:53", "[2001:db8::1]:53"]);
    expect(config.local).toMatchObject({ volumeRoots: ["/srv"], table: { volume_roots: ["/srv"] } });
  });

  it("registers middleware services, over http and https", async () => {
    const ca = join(home, "ca.pem");
    writeFileSync(ca, "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n");
    const plain = { name: "org/b", grpc_endpoint: "http://10.0.0.9:81", allow_insecure_transport: true, timeout: "2s" };
    write(file("", `${table({ tls_ca_cert_path: ca })}\n${table({ ...plain, audience: "mine" })}`));
    expect((await load()).config.supervisor.middleware).toEqual([
      {
        name: "guard",
        endpoint: "https://guard.example:8443",
        ca: { path: ca, pem: expect.stringContaining("BEGIN CERTIFICATE") },
        audience: "urn:openshell:extension:middleware:guard",
        allowInsecureTransport: false,
        maxPayloadBytes: 65_536,
        timeoutMs: 500,
      },
      {
        name: "org/b",
        endpoint: "http://10.0.0.9:81",
        ca: undefined,
        audience: "mine",
        allowInsecureTransport: true,
        maxPayloadBytes: 65_536,
        timeoutMs: 2_000,
      },
    ]);
  });

  it.each([
    [
      "an unknown key, with the nearest name",
      file('bind_adress = "127.0.0.1:1"'),
      /unknown key bind_adress in \[openshell\.gateway\], did you mean bind_address\?/,
    ],
    [
      "an unknown table",
      file("", "[openshell.supervisor.netwrok]"),
      /unknown key netwrok in \[openshell\.supervisor\], did you mean network\?/,
    ],
    ["an unknown top-level table", file("", "[loca]"), /unknown key loca in the top level, did you mean local\?/],
    [
      "a key that is not built yet",
      file('oidc = { issuer = "x" }'),
      /oidc in \[openshell\.gateway\] is not supported by this build yet/,
    ],
    ["a missing version", "[openshell.gateway]\n", /has no schema version/],
    ["another version", "[openshell]\nversion = 3\n", /has schema version 3/],
    ["broken TOML, with its place", file("bind_address = "), /gateway\.toml:4:\d+: is not valid TOML/],
    ["a value out of its list", file('log_level = "loud"'), /openshell\.gateway\.log_level .*one of trace, debug/],
    ["an address that is a name", file('bind_address = "localhost:1"'), /bind_address must be "IP:port"/],
    [
      "an unknown isolation layer",
      file("", '[openshell.supervisor]\nminimum_isolation = ["moat"]'),
      /minimum_isolation names an unknown isolation layer "moat"; known are confined, complete/,
    ],
    [
      "an unknown key of a middleware, with the nearest name",
      file("", middleware('name = "guard"\nmax_payload_bytes = 1\ngrpc_endpont = "https://a:1"')),
      /unknown key grpc_endpont in \[openshell\.supervisor\.middleware\.0\], did you mean grpc_endpoint\?/,
    ],
    [
      "a reserved middleware name",
      service({ name: "openshell/mine" }),
      /middleware\.0\.name must not begin with openshell\//,
    ],
    ["a middleware name with a space", service({ name: "a b" }), /middleware\.0\.name must have 1 to 128 letters/],
    [
      "a middleware registered twice",
      file("", `${table()}\n${table()}`),
      /middleware\.1\.name 'guard' is registered twice/,
    ],
    ["another scheme", service({ grpc_endpoint: "ftp://a:1" }), /grpc_endpoint must be http:\/\/host:port or https/],
    [
      "an endpoint with a path",
      service({ grpc_endpoint: "https://a:1/x" }),
      /grpc_endpoint must end after host and port/,
    ],
    [
      "an endpoint with a password",
      service({ grpc_endpoint: "https://u:hush@a:1" }),
      /must not carry a user or password/,
    ],
    [
      "plain http to a middleware",
      service({ grpc_endpoint: "http://a:1" }),
      /use https, or set allow_insecure_transport/,
    ],
    ["a payload above 4 MiB", service({ max_payload_bytes: 4 * 1024 * 1024 + 1 }), /max_payload_bytes/],
    ["a middleware without a payload limit", service({ max_payload_bytes: undefined }), /max_payload_bytes is missing/],
    ["a timeout below 10 ms", service({ timeout: "9ms" }), /timeout must be "Nms" or "Ns"/],
    ["a timeout above 30 s", service({ timeout: "31s" }), /timeout must be "Nms" or "Ns"/],
    [
      "a CA file that is not there",
      service({ tls_ca_cert_path: "/nonexistent/ca.pem" }),
      /\/nonexistent\/ca\.pem does not exist/,
    ],
    ["a relative volume root", file("", '[local]\nvolume_roots = ["srv"]'), /volume_roots\.0 must be an absolute path/],
    [
      "a resolver without a port",
      file("", '[openshell.supervisor.network]\nresolvers = ["10.0.0.1"]'),
      /resolvers\.0 must be "IP:port"/,
    ],
    ["shared ports", file('bind_address = "127.0.0.1:5"\nhealth_bind_address = "127.0.0.1:5"'), /share a port/],
    ["TLS off without saying that everybody may call", file("disable_tls = true"), /without any authentication/],
    [
      "TLS off beyond loopback",
      file('disable_tls = true\nbind_address = "0.0.0.0:5"\nauth = { allow_unauthenticated_users = true }'),
      /loopback address only/,
    ],
    [
      "a CA bundle that is not there",
      file("", '[openshell.supervisor.network]\nadditional_ca_bundle = "/nonexistent/ca.pem"'),
      /ca\.pem does not exist/,
    ],
  ])("refuses %s", async (_what, text, message) => {
    write(text);
    await expect(load()).rejects.toMatchObject({
      code: "invalid_configuration",
      message: expect.stringMatching(message),
    });
  });

  it("names every problem of a file at once", async () => {
    write(file('log_level = "loud"\nsever_sans = []', "[local]\nvolume_roots = 3"));
    await expect(load()).rejects.toThrow(/log_level.*sever_sans.*did you mean server_sans.*volume_roots/);
  });

  it("refuses flags and variables that mean nothing", async () => {
    expect(() => parseFlags(["--prot", "1"])).toThrow(/--prot: is not an option of serve/);
    expect(() => parseFlags(["--port"])).toThrow(/--port: needs a value/);
    await expect(load(["--port", "70000"])).rejects.toThrow(/--port: is not a port/);
    await expect(load([], { OPENSHELL_LOG_LEVEL: "loud" })).rejects.toThrow(/OPENSHELL_LOG_LEVEL: cannot be "loud"/);
    await expect(load(["--name", "Bad Name"])).rejects.toMatchObject({ code: "invalid_gateway_name" });
  });
});

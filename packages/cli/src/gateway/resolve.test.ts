import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { CliError } from "../errors.ts";
import { ownCertificate } from "../testing/certificate.ts";
import { needsStart } from "./record.ts";
import { type GatewayChoice, resolveGateway } from "./resolve.ts";
import { gatewayEnvironment } from "./start.ts";

let folder: string;
let own: ReturnType<typeof ownCertificate>;
beforeAll(() => {
  const made = mkdtempSync(join(tmpdir(), "openshell-certificate-"));
  own = ownCertificate(made);
  rmSync(made, { recursive: true });
});
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "openshell-resolve-"));
});
afterEach(() => rmSync(folder, { recursive: true }));

const where = () => ({
  uid: 12_345,
  home: folder,
  env: {
    XDG_CONFIG_HOME: join(folder, "c"),
    XDG_STATE_HOME: join(folder, "s"),
    XDG_RUNTIME_DIR: join(folder, "r"),
    OPENSHELL_SYSTEM_GATEWAY_DIR: join(folder, "etc"),
  },
});
const write = (path: string, text: string): void => {
  mkdirSync(join(folder, path, ".."), { recursive: true });
  writeFileSync(join(folder, path), text);
};
const register = (name: string, metadata: object): void =>
  write(`c/openshell/gateways/${name}/metadata.json`, JSON.stringify({ name, ...metadata }));
const certificates = (name: string): void => {
  const put = (file: string, text: string): void => write(`c/openshell/gateways/${name}/mtls/${file}`, text);
  put("ca.crt", own.certificate);
  put("tls.crt", own.certificate);
  put("tls.key", own.key);
};
const resolve = (choice: Partial<GatewayChoice> = {}) =>
  resolveGateway({ name: undefined, endpoint: undefined, insecure: false, ...choice }, where());

test("without any registration it is the embedded gateway, over its socket", () => {
  expect(resolve()).toMatchObject({
    kind: "embedded",
    name: "openshell",
    endpoint: { kind: "unix", path: join(folder, "r/openshell/openshell/user.sock") },
  });
});

test("the flag comes before the active gateway; a state folder makes a name embedded", () => {
  write("c/openshell/active_gateway", "other\n");
  expect(() => resolve()).toThrow(CliError);
  mkdirSync(join(folder, "s/openshell/other"), { recursive: true });
  expect(resolve()).toMatchObject({ kind: "embedded", name: "other" });
  expect(resolve({ name: "openshell" })).toMatchObject({ kind: "embedded", name: "openshell" });
});

test("the embedded gateway's own registration does not lead away from its socket", () => {
  register("openshell", { gateway_endpoint: "https://127.0.0.1:17670", is_remote: false, auth_mode: "mtls" });
  mkdirSync(join(folder, "s/openshell/openshell"), { recursive: true });
  expect(resolve()).toMatchObject({ kind: "embedded" });
});

test("a registered gateway is reached with its certificates", () => {
  register("far", { gateway_endpoint: "https://far.example.com:8080", is_remote: true });
  expect(() => resolve({ name: "far" })).toThrow(/no client certificates/);
  certificates("far");
  const target = resolve({ name: "far" });
  expect(target).toMatchObject({ kind: "remote", authMode: "mtls" });
  expect(target.endpoint).toMatchObject({
    tls: { ca: own.certificate, cert: own.certificate, key: own.key, verify: true },
  });
  expect(resolve({ name: "far", insecure: true }).endpoint).toMatchObject({ tls: { cert: undefined, verify: false } });
  register("plain", { gateway_endpoint: "http://far.example.com:8080", is_remote: true, auth_mode: "plaintext" });
  expect(resolve({ name: "plain" }).endpoint).toMatchObject({ tls: undefined });
});

test("an endpoint uses the registration that names it", () => {
  register("openshell", { gateway_endpoint: "https://127.0.0.1:17670", is_remote: false });
  certificates("openshell");
  expect(resolve({ endpoint: "https://127.0.0.1:17670/" })).toMatchObject({ kind: "remote", name: "openshell" });
  expect(resolve({ endpoint: "http://127.0.0.1:1" })).toMatchObject({ kind: "remote", authMode: "plaintext" });
});

test("system registrations are below the user's", () => {
  write("etc/gateways/corp/metadata.json", JSON.stringify({ gateway_endpoint: "http://corp.example.com:80" }));
  write("etc/active_gateway", "corp");
  expect(resolve()).toMatchObject({ kind: "remote", name: "corp" });
  register("corp", { gateway_endpoint: "http://mine.example.com:80", auth_mode: "plaintext" });
  expect((resolve().endpoint as { url: URL }).url.hostname).toBe("mine.example.com");
});

test("what cannot be used is refused with a next step", () => {
  for (const choice of [{ name: "../x" }, { name: "unknown" }, { endpoint: "ftp://x" }, { endpoint: "https://" }]) {
    try {
      resolve(choice);
      throw new Error(`accepted ${JSON.stringify(choice)}`);
    } catch (error) {
      expect(error, JSON.stringify(choice)).toBeInstanceOf(CliError);
      expect((error as CliError).next.length).toBeGreaterThan(0);
    }
  }
  register("sso", { gateway_endpoint: "https://x.example.com", is_remote: true, auth_mode: "oidc" });
  expect(() => resolve({ name: "sso" })).toThrow(/asks for a login/);
  write("c/openshell/gateways/bad/metadata.json", "{");
  expect(() => resolve({ name: "bad" })).toThrow(/metadata\.json is not JSON/);
});

test("an auto-started gateway of another build is outdated, one that a person started is not", () => {
  const target = resolve();
  if (target.kind !== "embedded") throw new Error(target.kind);
  expect(needsStart(target.paths, "b1")).toEqual({ kind: "not-running" });
  write("r/openshell/openshell/user.sock", "");
  expect(needsStart(target.paths, "b1")).toBeUndefined();
  const record = { pid: 1, startTime: "1", bootId: "x", build: "b1", version: "0.1.0", autoStarted: true };
  write("r/openshell/openshell/gateway.json", JSON.stringify(record));
  expect(needsStart(target.paths, "b1")).toBeUndefined();
  expect(needsStart(target.paths, "b2")).toMatchObject({ kind: "outdated", record });
  expect(needsStart(target.paths, "")).toBeUndefined();
  write("r/openshell/openshell/gateway.json", JSON.stringify({ ...record, autoStarted: false }));
  expect(needsStart(target.paths, "b2")).toBeUndefined();
  write("r/openshell/openshell/gateway.json", "{");
  expect(needsStart(target.paths, "b2")).toBeUndefined();
});

test("the gateway inherits known variables and no secret", () => {
  const env = {
    PATH: "/bin",
    HOME: "/h",
    XDG_STATE_HOME: "/s",
    OPENSHELL_LOG_LEVEL: "debug",
    OPENSHELL_OIDC_CLIENT_SECRET: "secret",
    OPENSHELL_GATEWAY: "x",
    NODE_OPTIONS: "--inspect",
    HTTPS_PROXY: "http://proxy",
    API_KEY: "secret",
  };
  const { MALLOC_ARENA_MAX, MALLOC_TRIM_THRESHOLD_, ...inherited } = gatewayEnvironment(env);
  expect(MALLOC_ARENA_MAX).toBe("2");
  expect(MALLOC_TRIM_THRESHOLD_).toBe("131072");
  expect(inherited).toEqual({
    PATH: "/bin",
    HOME: "/h",
    XDG_STATE_HOME: "/s",
    OPENSHELL_LOG_LEVEL: "debug",
  });
});

import { X509Certificate } from "node:crypto";
import { once } from "node:events";
import { chmodSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connect, createServer, type TLSSocket } from "node:tls";
import { systemClock } from "@openshell/base";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { openStore } from "../store/store.ts";
import { createVault } from "../store/vault.ts";
import { LOCAL_NAMES, loadControlPlane } from "./control-plane.ts";
import { registeredPort, writeDiscovery } from "./discovery.ts";
import { createInspectionCas } from "./inspection-ca.ts";
import { deriveKeys, loadKeyEncryptionKey } from "./keys.ts";

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "openshell-pki-"));
});
afterEach(() => rmSync(folder, { recursive: true }));

const load = (extraNames: readonly string[] = [], now = Date.now()) =>
  loadControlPlane({ keys: join(folder, "keys"), clientFolder: join(folder, "mtls"), extraNames, now });

describe("the control-plane PKI", () => {
  it("is made once, kept, and private", async () => {
    const first = await load();
    expect(first.renewed).toEqual(["ca", "server", "client"]);
    const second = await load();
    expect(second).toEqual({ ...first, renewed: [] });
    for (const file of ["keys/ca.key", "keys/server.key", "mtls/tls.key", "mtls/tls.crt", "mtls/ca.crt"]) {
      expect(statSync(join(folder, file)).mode & 0o777).toBe(0o600);
    }
    expect(readFileSync(join(folder, "mtls/ca.crt"), "utf8")).toBe(first.caPem);
    const server = new X509Certificate(first.server.certificatePem);
    for (const name of LOCAL_NAMES) {
      const shown = name.replace("*", "any");
      expect(/^[\d.:]+$/.test(name) ? server.checkIP(name) : server.checkHost(shown)).toBeDefined();
    }
    expect(new X509Certificate(first.client.certificatePem).subject).toBe(
      "O=openshell\nOU=openshell-user\nCN=openshell-client",
    );
    expect(new X509Certificate(first.caPem).ca).toBe(true);
  });

  it("renews the server for a new name, leaves with a third left, and everything with the CA", async () => {
    await load();
    expect((await load(["gateway.example"])).renewed).toEqual(["server"]);
    expect((await load(["gateway.example"])).renewed).toEqual([]);
    const day = 86_400_000;
    expect((await load([], Date.now() + 500 * day)).renewed).toEqual(["server", "client"]);
    expect((await load([], Date.now() + 3_000 * day)).renewed).toEqual(["ca", "server", "client"]);
  });

  it("replaces a pair whose key is another's, as a crash between two writes leaves it", async () => {
    const { server } = await load();
    writeFileSync(join(folder, "mtls/tls.key"), server.privateKeyPem);
    expect((await load()).renewed).toEqual(["client"]);
    writeFileSync(join(folder, "keys/server.crt"), "garbage");
    expect((await load()).renewed).toEqual(["server"]);
  });

  it("authenticates both ends of a TLS connection", async () => {
    const { caPem, server, client } = await load();
    const listener = createServer({
      cert: server.certificatePem,
      key: server.privateKeyPem,
      ca: caPem,
      requestCert: true,
      rejectUnauthorized: true,
    });
    listener.listen(0, "127.0.0.1");
    await once(listener, "listening");
    const { port } = listener.address() as AddressInfo;
    const accepted = once(listener, "secureConnection") as Promise<[TLSSocket]>;
    const socket = connect({
      host: "127.0.0.1",
      port,
      ca: caPem,
      cert: client.certificatePem,
      key: client.privateKeyPem,
      rejectUnauthorized: true,
    });
    const [peer] = await accepted;
    expect(peer.authorized).toBe(true);
    expect(peer.getPeerCertificate().subject).toMatchObject({ CN: "openshell-client", OU: "openshell-user" });
    socket.destroy();
    peer.destroy();
    listener.close();
  });
});

describe("discovery files", () => {
  const options = { name: "g", endpoint: "https://127.0.0.1:17670", port: 17670, authMode: "mtls" } as const;
  const read = (path: string) => readFileSync(join(folder, path), "utf8");

  it("name the gateway, and make it active only when none is", async () => {
    expect(await writeDiscovery({ root: folder, ...options })).toBe("written");
    expect(JSON.parse(read("gateways/g/metadata.json"))).toEqual({
      name: "g",
      gateway_endpoint: "https://127.0.0.1:17670",
      is_remote: false,
      gateway_port: 17670,
      auth_mode: "mtls",
    });
    expect(read("active_gateway")).toBe("g\n");
    expect([await registeredPort(folder, "g"), await registeredPort(folder, "none")]).toEqual([17670, undefined]);
    expect(await writeDiscovery({ root: folder, ...options })).toBe("unchanged");
    await writeDiscovery({ root: folder, ...options, name: "h" });
    expect(read("active_gateway")).toBe("g\n");
  });

  it("leave a registration of another machine alone", async () => {
    await writeDiscovery({ root: folder, ...options });
    const remote = JSON.stringify({ gateway_endpoint: "https://far.example", is_remote: true });
    writeFileSync(join(folder, "gateways/g/metadata.json"), remote);
    expect(await writeDiscovery({ root: folder, ...options })).toBe("foreign");
    expect(read("gateways/g/metadata.json")).toBe(remote);
  });
});

describe("keys", () => {
  it("keeps the key-encryption key and refuses one that is not private or not whole", async () => {
    const key = await loadKeyEncryptionKey(folder);
    expect(await loadKeyEncryptionKey(folder)).toEqual(key);
    const path = join(folder, "keys/kek");
    chmodSync(path, 0o640);
    await expect(loadKeyEncryptionKey(folder)).rejects.toThrow(/may be read by other users/);
    chmodSync(path, 0o600);
    writeFileSync(path, "short");
    await expect(loadKeyEncryptionKey(folder)).rejects.toThrow(/has 5 bytes/);
  });

  it("never makes a new key beside a database that needs the old one", async () => {
    writeFileSync(join(folder, "gateway.db"), "");
    await expect(loadKeyEncryptionKey(folder)).rejects.toMatchObject({ code: "key_unusable" });
  });

  it("derives a different key for each purpose", () => {
    const keys = deriveKeys(new Uint8Array(32).fill(7));
    const data = new Uint8Array([1]);
    expect(keys.requestIds(data)).toHaveLength(32);
    expect(keys.requestIds(data)).not.toEqual(keys.pageTokens(data));
    expect(keys.requestIds(data)).toEqual(deriveKeys(new Uint8Array(32).fill(7)).requestIds(data));
  });
});

describe("inspection CAs", () => {
  it("are one a workspace, encrypted in the store, and the same after a restart", async () => {
    const vault = createVault(new Uint8Array(32).fill(3));
    const path = join(folder, "gateway.db");
    let store = await openStore(path);
    const cas = createInspectionCas({ store, vault, clock: systemClock });
    const [one, same, other] = await Promise.all([cas.of("a"), cas.of("a"), cas.of("b")]);
    expect(same).toBe(one);
    expect(other.certificatePem).not.toBe(one.certificatePem);
    expect(new X509Certificate(one.certificatePem).ca).toBe(true);
    const { sealed } = (await store.secrets.get("workspace:a", "inspection-ca"))!;
    expect(Buffer.from(sealed).includes("PRIVATE KEY")).toBe(false);
    await store[Symbol.asyncDispose]();
    store = await openStore(path);
    const again = await createInspectionCas({ store, vault, clock: systemClock }).of("a");
    expect(again.privateKeyPem.reveal()).toBe(one.privateKeyPem.reveal());
    expect(`${again.privateKeyPem} ${JSON.stringify(again)}`).not.toContain("PRIVATE");
    await store[Symbol.asyncDispose]();
  });
});

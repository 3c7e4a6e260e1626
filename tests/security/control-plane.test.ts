import { randomBytes } from "node:crypto";
import { readdirSync, readFileSync, renameSync, statSync, unlinkSync } from "node:fs";
import http from "node:http";
import https from "node:https";
import net from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { OpenShell } from "@openshell/api";
import { SupervisorGateway } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { expect } from "vitest";
import { rawHttp } from "../support/api.ts";
import { attack, openLab, PYTHON } from "../support/attack.ts";
import { inMode } from "../support/modes.ts";

/** The control plane: its sockets, its port, its hosts, and what stands behind a sandbox's control socket. */

const lab = openLab();
const SCOPE = { selection: { case: "workspace", value: "default" } } as const;

/** Connects as nobody; only root can become somebody else, a user's pass looks at the modes alone. */
async function connectAsNobody(path: string): Promise<string> {
  const script = `import socket,sys,errno
s=socket.socket(socket.AF_UNIX)
try: s.connect(sys.argv[1]); print("connected")
except OSError as e: print(errno.errorcode[e.errno])`;
  return (await lab.net.run([PYTHON, "-c", script, path], { uid: 65_534 })).stdout.trim();
}

function unixClient<T extends typeof OpenShell | typeof SupervisorGateway>(service: T, path: string) {
  const nodeOptions = { createConnection: () => net.connect(path) };
  return createClient(service, createGrpcTransport({ baseUrl: "http://gateway", nodeOptions }));
}

async function codeOf(call: Promise<unknown>): Promise<string> {
  return call.then(
    () => "answered",
    (error: unknown) => Code[ConnectError.from(error).code] ?? "unknown",
  );
}

interface TcpOptions {
  readonly options?: https.RequestOptions;
  readonly headers?: Record<string, string>;
  readonly body?: string;
}

/** One request to the gateway's port; status and body, or the error's code. */
function tcp(endpoint: string, path: string, how: TcpOptions = {}): Promise<string> {
  const url = new URL(path, endpoint);
  const send = url.protocol === "https:" ? https.request : http.request;
  return new Promise((done) => {
    const request = send(
      url,
      {
        method: "POST",
        rejectUnauthorized: false,
        timeout: 5_000,
        ...how.options,
        headers: { "content-type": "application/json", ...how.headers },
      },
      (response) => {
        const parts: Buffer[] = [];
        response.on("data", (part: Buffer) => parts.push(part));
        response.on("end", () => done(`${response.statusCode} ${Buffer.concat(parts)}`));
      },
    );
    request.on("timeout", () => request.destroy(new Error("timeout")));
    request.on("error", (error: NodeJS.ErrnoException) => done(`error ${error.code ?? error.message}`));
    request.end(how.body ?? "{}");
  });
}

async function endpoint(): Promise<string> {
  const status = await rawHttp(lab.gateway.folders.userSocket, "GET /local/status HTTP/1.1");
  const record = JSON.parse(status.slice(status.indexOf("{"), status.lastIndexOf("}") + 1)) as {
    record: { endpoint: string };
  };
  return record.record.endpoint;
}

const METHODS = ["ListSandboxes", "CreateSandbox", "ExecSandbox", "ListProviders", "GetCurrentUser", "DeleteSandbox"];

attack(
  "another user of the machine at the users', hosts' and sandboxes' sockets",
  "nobody but the owner can connect; folders are 0700, sockets 0600",
  { root: "EACCES", user: "0700 and 0600" },
  async ({ gateway }, expected) => {
    const { folders, user } = gateway;
    const sockets: string[] = [];
    const visit = (folder: string): void => {
      expect(statSync(folder).mode & 0o077, folder).toBe(0);
      for (const entry of readdirSync(folder, { withFileTypes: true })) {
        const path = join(folder, entry.name);
        if (entry.isDirectory()) visit(path);
        else if (entry.isSocket()) sockets.push(path);
        else expect(statSync(path).mode & 0o077, path).toBe(0);
      }
    };
    visit(folders.runtime);
    for (const path of sockets) expect(statSync(path).mode & 0o077, path).toBe(0);
    expect(sockets).toContain(folders.userSocket);
    expect(sockets).toContain(folders.hostSocket);
    expect(sockets.some((path) => path.endsWith("control.sock"))).toBe(true);
    expect(statSync(user.home.state).mode & 0o077).toBe(0);
    for (const name of readdirSync(folders.state)) {
      const { mode } = statSync(join(folders.state, name));
      expect(mode & 0o077, name).toBe(0);
    }
    if (inMode({ root: true, user: false }))
      for (const path of sockets) expect(await connectAsNobody(path)).toBe(expected);
  },
);

attack(
  "the hosts' socket without the host's secret, with guesses, and without a sandbox's token",
  "every call ends unauthenticated; the sandbox goes on",
  { root: "Unauthenticated", user: "Unauthenticated" },
  async ({ gateway, box }, expected) => {
    const client = unixClient(SupervisorGateway, gateway.folders.hostSocket);
    async function* hello() {
      yield { message: { case: "hello" as const, value: { sandboxId: box.id, hostId: "h", pid: process.pid } } };
      await sleep(3_000);
    }
    const drain = async (stream: AsyncIterable<unknown>) => {
      for await (const message of stream) return message;
      return undefined;
    };
    const secrets = ["", "00".repeat(32), randomBytes(32).toString("hex"), "x".repeat(64), "0".repeat(100_000)];
    for (const secret of secrets.slice(0, 4)) {
      const host = client.connectHost(hello() as never, { headers: { "openshell-host-secret": secret } });
      expect(await codeOf(drain(host)), `host ${secret.slice(0, 8)}`).toBe(expected);
      for (const method of ["connectSupervisor", "relay"] as const) {
        const stream = client[method](hello() as never, { headers: { "openshell-sandbox-token": secret } });
        expect(await codeOf(drain(stream as AsyncIterable<unknown>)), method).toBe(expected);
      }
      const polling = unixClient(OpenShell, gateway.folders.hostSocket);
      const headers = { "openshell-sandbox-token": secret };
      const sandbox = { sandboxId: box.id };
      for (const call of [
        polling.getSandboxConfig({ workspaceScope: SCOPE, name: box.name }, { headers }),
        polling.getSandboxProviderEnvironment({ ...sandbox, supportsStaticCredentialBindings: true }, { headers }),
        polling.reportPolicyStatus({ ...sandbox, version: 1 }, { headers }),
        polling.reportSandboxConfiguration(sandbox, { headers }),
        polling.reportProviderReadiness(sandbox, { headers }),
      ])
        expect(await codeOf(call)).toBe(expected);
    }
    expect((await box.sh("echo on")).stdout).toBe("on\n");
  },
);

attack(
  "the users' API on the hosts' socket, and the hosts' on the users'",
  "neither is served there",
  { root: "Unimplemented", user: "Unimplemented" },
  async ({ gateway, box }, expected) => {
    const asUser = unixClient(OpenShell, gateway.folders.hostSocket);
    expect(await codeOf(asUser.listSandboxes({ workspaceScope: SCOPE }))).toBe(expected);
    const secrets = unixClient(OpenShell, gateway.folders.userSocket);
    expect(await codeOf(secrets.getSandboxProviderEnvironment({ sandboxId: box.id }))).toBe(expected);
    const asHost = unixClient(SupervisorGateway, gateway.folders.userSocket);
    async function* nothing() {}
    const stream = asHost.connectHost(nothing() as never);
    expect(
      await codeOf(
        (async () => {
          for await (const _ of stream) void _;
        })(),
      ),
    ).toBe(expected);
  },
);

attack(
  "the TCP port without a certificate, with one of another authority, in the clear, with headers that claim a user",
  "no method answers; no sandbox is listed, made or deleted",
  { root: "unauthenticated", user: "unauthenticated" },
  async ({ gateway, net: internet, box }, expected) => {
    const base = await endpoint();
    const foreign = await internet.authority.issue(["user"]);
    const claims = {
      "x-forwarded-client-cert": 'Subject="CN=admin,OU=openshell-admin"',
      "x-forwarded-for": "127.0.0.1",
      authorization: "Bearer admin",
      "openshell-user": "admin",
      origin: "https://evil.example-other.net",
    };
    for (const method of METHODS) {
      const path = `/openshell.v1.OpenShell/${method}`;
      for (const how of [{}, { headers: claims }, { options: { key: foreign.key, cert: foreign.cert } }]) {
        const answer = await tcp(base, path, how);
        expect(answer, method).toMatch(new RegExp(`^(401 .*${expected}|error E|4\\d\\d )`, "s"));
        expect(answer).not.toContain(box.name);
      }
    }
    for (const path of ["/local/status", "/local/stop?sandboxes=stop", "/metrics", "/readyz", "/debug", "/.."]) {
      expect(await tcp(base, path), path).toMatch(/^4\d\d /);
    }
    expect(await tcp(base.replace("https", "http"), "/healthz")).toMatch(/^error /);
    expect((await box.get()).metadata?.name).toBe(box.name);
    void gateway;
  },
);

attack(
  "a remote caller with a valid certificate who mounts folders of the machine or stops the gateway",
  "refused: only the owner on the local socket may",
  { root: "refused", user: "refused" },
  async ({ gateway, witness }) => {
    const base = await endpoint();
    const folder = join(gateway.user.home.config, "openshell/gateways", gateway.folders.name, "mtls");
    const read = (name: string) => readFileSync(join(folder, name));
    const options = { key: read("tls.key"), cert: read("tls.crt"), ca: read("ca.crt"), rejectUnauthorized: true };
    const who = await tcp(base, "/openshell.v1.OpenShell/ListSandboxes", {
      options,
      body: JSON.stringify({ workspaceScope: { workspace: "default" } }),
    });
    expect(who).toMatch(/^200 /);
    const body = JSON.stringify({
      workspaceScope: { workspace: "default" },
      name: "remote",
      spec: {
        command: ["sleep", "60"],
        template: { driverConfig: { local: { volumes: [`${witness.folder}:/sandbox/x`] } } },
      },
    });
    const made = await tcp(base, "/openshell.v1.OpenShell/CreateSandbox", { options, body });
    expect(made).toMatch(/^4\d\d .*(mount|volume)/is);
    expect(await tcp(base, "/local/stop?sandboxes=stop", { options })).toMatch(/^40[34] /);
  },
);

attack(
  "garbage, half requests, floods of connections and of HTTP/2 frames at the gateway's sockets and port",
  "the gateway answers its owner all the while and afterwards",
  { root: "answered", user: "answered" },
  async ({ gateway, box }) => {
    const base = new URL(await endpoint());
    const places = [gateway.folders.userSocket, gateway.folders.hostSocket, Number(base.port)];
    const preface = Buffer.from("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    const settings = Buffer.from([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    const frame = (type: number, flags: number, stream: number, payload: Buffer) =>
      Buffer.concat([
        Buffer.from([0, payload.length >> 8, payload.length & 255, type, flags, 0, 0, stream >> 8, stream & 255]),
        payload,
      ]);
    const request = Buffer.from([0x83, 0x86, 0x84, 0x41, 1, 0x61]);
    const resets = Buffer.concat(
      Array.from({ length: 400 }, (_, n) => [
        frame(1, 4, 2 * n + 1, request),
        frame(3, 0, 2 * n + 1, Buffer.alloc(4)),
      ]).flat(),
    );
    const payloads = [
      randomBytes(5_000),
      Buffer.from("GET / HTTP/1.1\r\nX: "),
      Buffer.from(`GET / HTTP/1.1\r\nX: ${"a".repeat(2_000_000)}`),
      Buffer.from("\x16\x03\x01\xff\xff"),
      Buffer.concat([preface, settings, resets]),
      Buffer.concat([
        preface,
        settings,
        frame(1, 0, 1, request),
        ...Array.from({ length: 500 }, () => frame(9, 0, 1, Buffer.alloc(4_000))),
      ]),
      Buffer.concat([preface, ...Array.from({ length: 20_000 }, () => settings)]),
      Buffer.concat([preface, settings, ...Array.from({ length: 20_000 }, () => frame(6, 0, 0, Buffer.alloc(8)))]),
    ];
    const sockets: net.Socket[] = [];
    for (const place of places) {
      for (const payload of payloads) {
        for (let n = 0; n < 12; n++) {
          const socket = typeof place === "number" ? net.connect(place, base.hostname) : net.connect(place);
          socket.on("error", () => {});
          socket.on("connect", () => socket.write(payload));
          sockets.push(socket);
        }
      }
    }
    for (let n = 0; n < 5; n++) expect((await box.sh("echo on")).stdout).toBe("on\n");
    for (const socket of sockets) socket.destroy();
    expect((await box.sh("echo on")).stdout).toBe("on\n");
    expect(statSync(`/proc/${gateway.pid}`).isDirectory()).toBe(true);
  },
  60_000,
);

attack(
  "the sandbox's control socket without its nonce, with wrong ones, with broken frames",
  "init answers nobody, keeps its host, and the sandbox goes on",
  { root: "closed", user: "closed" },
  async ({ gateway, box }, expected) => {
    const sockets = readdirSync(join(gateway.folders.runtime, "s")).map((name) =>
      join(gateway.folders.runtime, "s", name, "control.sock"),
    );
    expect(sockets.length).toBeGreaterThan(0);
    const head = (size: number, type: number, fds = 0, id = 1, flags = 0) => {
      const bytes = Buffer.alloc(16);
      bytes.writeUInt32LE(size >>> 0, 0);
      bytes.writeUInt16LE(type, 4);
      bytes.writeUInt16LE(fds, 6);
      bytes.writeUInt32LE(id, 8);
      bytes.writeUInt32LE(flags, 12);
      return bytes;
    };
    const hello = (nonce: Buffer) => {
      const body = Buffer.alloc(12 + nonce.length);
      body.writeUInt32LE(1, 0);
      body.writeUInt32LE(1, 4);
      body.writeUInt32LE(nonce.length, 8);
      nonce.copy(body, 12);
      return Buffer.concat([head(body.length + 5, 1), body, Buffer.from([0, 0, 0, 0, 0])]);
    };
    const attempts = [
      hello(Buffer.alloc(32)),
      hello(randomBytes(32)),
      hello(Buffer.alloc(0)),
      hello(randomBytes(4_000)),
      head(0xffff_ffff, 1),
      head(65_520, 1, 16),
      head(4, 16),
      Buffer.concat([head(4, 5), Buffer.alloc(4)]),
      head(0, 1, 0, 1, 0xffff_ffff),
      randomBytes(300),
    ];
    for (const path of sockets) {
      for (const bytes of attempts) {
        const answer = await new Promise<string>((done) => {
          const parts: Buffer[] = [];
          const socket = net.connect(path, () => socket.write(bytes));
          socket.on("data", (part) => parts.push(part as Buffer));
          socket.on("error", () => {});
          socket.on("close", () => done(parts.length === 0 ? "closed" : Buffer.concat(parts).toString("hex")));
          socket.setTimeout(7_000, () => socket.destroy());
        });
        expect(answer).toBe(expected);
      }
    }
    expect((await box.sh("echo on")).stdout).toBe("on\n");
  },
  120_000,
);

attack(
  "a fake init: a process that took the place of the control socket while the host was gone",
  "the new host gives it nothing and runs nothing there; the sandbox is not reported ready",
  { root: "not attached", user: "not attached" },
  async ({ gateway, create, witness }) => {
    await using own = await create();
    // A workspace has one host: the other sandboxes re-attach as well.
    const folder = readdirSync(join(gateway.folders.runtime, "s"))
      .map((name) => join(gateway.folders.runtime, "s", name))
      .toSorted((a, b) => statSync(b).birthtimeMs - statSync(a).birthtimeMs)[0]!;
    const path = join(folder, "control.sock");
    const received: Buffer[] = [];
    const fake = net.createServer((socket) => {
      socket.on("error", () => {});
      socket.on("data", (data) => received.push(data as Buffer));
    });
    renameSync(path, `${path}.real`);
    await new Promise<void>((done) => fake.listen(path, done));
    for (const pid of gateway.hosts()) {
      witness.forget(pid);
      process.kill(pid, "SIGKILL");
    }
    await sleep(3_000);
    const outcome = await own.sh("echo ran", { timeoutMs: 3_000 }).then(
      (result) => result.stdout,
      () => "failed",
    );
    expect(outcome).toBe("failed");
    // SO_PEERCRED tells the host who listens before it says anything, the nonce among it.
    expect(Buffer.concat(received).length).toBe(0);
    fake.close();
    try {
      unlinkSync(path);
    } catch {
      // Closing removed it.
    }
    renameSync(`${path}.real`, path);
    for (const pid of gateway.hosts()) witness.watch(pid, "a supervisor host");
  },
  60_000,
);

import { once } from "node:events";
import {
  createSecureServer,
  createServer,
  type Http2Server,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from "node:http2";
import { type AddressInfo, createServer as createTcpServer } from "node:net";
import { createSecureContext } from "node:tls";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { type ManifestSchema, Operation, Phase, SupervisorMiddleware } from "@openshell/api/generated/middleware_pb.js";
import { RuntimeError, systemClock } from "@openshell/base";
import { grpcLane } from "@openshell/rpc";
import { afterEach, beforeAll, beforeEach, describe, expect, it, vi } from "vitest";
import { createCa, type TestCa } from "../egress/testing/fixture.ts";
import { MiddlewareConnection } from "./connection.ts";
import { type Service, serviceOf } from "./service.ts";
import { registered } from "./testing/services.ts";

const MANIFEST: MessageInitShape<typeof ManifestSchema> = {
  name: "peer",
  bindings: [{ operation: Operation.HTTP_REQUEST, phase: Phase.PRE_CREDENTIALS, maxPayloadBytes: 4_096n }],
};

/** A service on a port of this machine, with or without TLS. */
class Peer implements AsyncDisposable {
  manifest: MessageInitShape<typeof ManifestSchema> = MANIFEST;
  /** Undefined: the service does not know the question. */
  accepts: ((config: object) => boolean) | undefined = () => true;
  describes = 0;
  readonly #server: Http2Server;
  readonly #sessions = new Set<ServerHttp2Session>();

  constructor(tls?: { readonly cert: string; readonly key: string }) {
    this.#server = tls === undefined ? createServer() : createSecureServer(tls);
    const lane = grpcLane({
      routes: (router) =>
        router.service(SupervisorMiddleware, {
          describe: () => {
            this.describes += 1;
            return this.manifest;
          },
          validateConfig: ({ config }) => {
            if (this.accepts === undefined) throw new ConnectError("no", Code.Unimplemented);
            return { accepted: this.accepts(config ?? {}), reason: "hush-hush" };
          },
        }),
    });
    this.#server.on("stream", (stream, headers) => void lane.handle(stream as ServerHttp2Stream, headers));
    this.#server.on("session", (session) => {
      this.#sessions.add(session);
      session.once("close", () => this.#sessions.delete(session));
      session.on("error", () => {});
    });
  }

  async listen(port = 0): Promise<number> {
    this.#server.listen(port, "127.0.0.1");
    await once(this.#server, "listening");
    return (this.#server.address() as AddressInfo).port;
  }

  /** As a service that is killed. */
  async die(): Promise<void> {
    const closed = once(this.#server, "close");
    this.#server.close();
    for (const session of this.#sessions) session.destroy();
    await closed;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#server.listening) await this.die();
  }
}

describe("connection to a service", () => {
  let stack: AsyncDisposableStack;
  let links: string[];
  let ca: TestCa;
  beforeAll(async () => {
    ca = await createCa("services");
  });
  beforeEach(() => {
    stack = new AsyncDisposableStack();
    links = [];
  });
  afterEach(() => stack.disposeAsync());

  const service = (port: number, change: Partial<Service> = {}): Service => {
    const plain = serviceOf(registered("guard", port))!;
    return { ...plain, timeoutMs: 5_000, ...change };
  };
  const secure = (port: number, caPem: string, host = "127.0.0.1") =>
    service(port, { endpoint: { host, port, secure: true }, caPem });
  const open = async (to: Service) =>
    stack.use(
      await MiddlewareConnection.open(
        to,
        {
          clock: { ...systemClock, sleep: (ms, options) => systemClock.sleep(Math.min(ms, 5), options) },
          roots: () => createSecureContext(),
          onLink: (name, problem) => links.push(`${name} ${problem?.code ?? "back"}`),
        },
        new AbortController().signal,
      ),
    );
  const refusal = async (to: Service): Promise<string> => {
    const error: unknown = await open(to).catch((one: unknown) => one);
    if (!(error instanceof RuntimeError)) throw new Error("it was not refused");
    return `${error.code}: ${error.message}`;
  };

  it("is open once the service has described itself", async () => {
    const peer = stack.use(new Peer());
    const connection = await open(service(await peer.listen()));
    expect(connection.connected).toBe(true);
    expect(connection.bindings).toEqual([{ operation: "http_request", maxPayloadBytes: 1_024, timeoutMs: 5_000 }]);
  });

  it("is verified over TLS by the registered CA and by nothing else", async () => {
    const peer = stack.use(new Peer(await ca.issue("localhost")));
    const port = await peer.listen();
    expect((await open(secure(port, ca.certificatePem, "localhost"))).connected).toBe(true);
    const other = await createCa("somebody else's");
    const untrusted =
      /^middleware_unreachable: middleware 'guard' at https:\/\/localhost:\d+: no connection \([A-Z_]+\)$/;
    expect(await refusal(secure(port, other.certificatePem, "localhost"))).toMatch(untrusted);
    expect(await refusal(secure(port, "", "localhost"))).toMatch(untrusted);
    // Its certificate does not name this address.
    expect(await refusal(secure(port, ca.certificatePem))).toContain("ERR_TLS_CERT_ALTNAME_INVALID");
    expect(peer.describes).toBe(1);
  });

  it("is refused with the reason, and without a word of the service, when there is nothing or something else", async () => {
    const peer = new Peer();
    const port = await peer.listen();
    await peer.die();
    expect(await refusal(service(port))).toContain(`at http://127.0.0.1:${port}: no connection (ECONNREFUSED)`);
    const silent = createTcpServer((socket) => void socket.on("error", () => {}));
    stack.defer(async () => void silent.close());
    silent.listen(0, "127.0.0.1");
    await once(silent, "listening");
    const mute = service((silent.address() as AddressInfo).port, { timeoutMs: 50 });
    expect(await refusal(mute)).toContain("Describe failed (DeadlineExceeded)");
    const useless = stack.use(new Peer());
    useless.manifest = { ...MANIFEST, expectedAudience: "urn:hush-hush" };
    const text = await refusal(service(await useless.listen()));
    expect(text).toContain(
      "middleware_manifest_invalid: middleware 'guard' cannot be used: it expects another audience",
    );
    expect(text).not.toContain("hush-hush");
  });

  it("is made again after a loss, and only to a service that describes itself acceptably", async () => {
    const peer = new Peer();
    const port = await peer.listen();
    const connection = await open(service(port));
    await peer.die();
    await vi.waitFor(() => expect(connection.connected).toBe(false));
    const worse = new Peer();
    worse.manifest = { ...MANIFEST, bindings: [] };
    await worse.listen(port);
    await vi.waitFor(() => expect(worse.describes).toBeGreaterThan(0));
    expect(connection.connected).toBe(false);
    await worse.die();
    const better = stack.use(new Peer());
    await better.listen(port);
    await vi.waitFor(() => expect(connection.connected).toBe(true));
    expect(links).toEqual(["guard middleware_unreachable", "guard back"]);
  });

  it("asks about settings; what cannot be asked is no consent", async () => {
    const peer = stack.use(new Peer());
    const connection = await open(service(await peer.listen()));
    const { signal } = new AbortController();
    peer.accepts = (config) => JSON.stringify(config) === '{"mode":"x"}';
    await connection.validate({ mode: "x" }, signal);
    const refused = connection.validate({ mode: "y" }, signal);
    await expect(refused).rejects.toMatchObject({ code: "middleware_config_refused" });
    await expect(refused).rejects.not.toThrow(/hush-hush/);
    peer.accepts = undefined;
    await connection.validate({}, signal);
    await expect(connection.validate({ mode: "x" }, signal)).rejects.toMatchObject({ code: "middleware_unreachable" });
  });

  it("ends for good when it is closed", async () => {
    const peer = stack.use(new Peer());
    const connection = await open(service(await peer.listen()));
    await connection[Symbol.asyncDispose]();
    await new Promise((resolve) => setImmediate(resolve));
    expect(peer.describes).toBe(1);
    expect(links).toEqual([]);
  });
});

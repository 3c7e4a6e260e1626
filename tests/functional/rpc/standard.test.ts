import { once } from "node:events";
import { join } from "node:path";
import { Code, ConnectError, createClient, type Transport } from "@connectrpc/connect";
import { OpenShell } from "@openshell/api";
import {
  Health,
  type HealthCheckResponse,
  HealthCheckResponse_ServingStatus as Serving,
} from "@openshell/api/generated/grpc/health/v1/health_pb.js";
import { ServerReflection } from "@openshell/api/generated/grpc/reflection/v1/reflection_pb.js";
import { ServerReflection as ServerReflectionAlpha } from "@openshell/api/generated/grpc/reflection/v1alpha/reflection_pb.js";
import { describe, expect, it } from "vitest";
import { runCommand, runOk } from "../../support/command.ts";
import { requiredProgram } from "../../support/programs.ts";
import { GatewayProcess } from "../gateway/gateway-process.ts";

/** gRPC's own services, asked as probes and tools ask them. */

/** Every way to the users' listeners, with and without a proof of who calls. */
function ways(gateway: GatewayProcess): Readonly<Record<string, Transport>> {
  return {
    "users' socket": gateway.localTransport(),
    "port, with certificate": gateway.tlsTransport(),
    "port, without": gateway.tlsTransport({ withCertificate: false }),
  };
}

async function told(watch: AsyncIterator<HealthCheckResponse>): Promise<string> {
  try {
    const { done, value } = await watch.next();
    return done ? "end" : Serving[value.status]!;
  } catch (error) {
    return Code[ConnectError.from(error).code]!;
  }
}

async function codeOf(call: Promise<unknown>): Promise<string> {
  return call.then(
    () => "answered",
    (error: unknown) => Code[ConnectError.from(error).code]!,
  );
}

async function serviceNames(transport: Transport): Promise<readonly (readonly string[])[]> {
  const question = async function* () {
    yield { messageRequest: { case: "listServices", value: "" } as const };
  };
  const names: string[][] = [];
  const clients = [createClient(ServerReflection, transport), createClient(ServerReflectionAlpha, transport)];
  for (const client of clients as [(typeof clients)[0]]) {
    for await (const { messageResponse } of client.serverReflectionInfo(question())) {
      if (messageResponse.case !== "listServicesResponse") throw new Error(`got ${messageResponse.case}`);
      names.push(messageResponse.value.service.map(({ name }) => name));
    }
  }
  return names;
}

/** Limits of the gateway (packages/gateway/src/http/limits.ts). */
const STRANGER_REFLECTION_STREAMS = 32;
const HEALTH_WATCHERS = 1_024;

const SERVICES = [
  "grpc.health.v1.Health",
  "grpc.reflection.v1.ServerReflection",
  "grpc.reflection.v1alpha.ServerReflection",
  "openshell.v1.OpenShell",
];

describe("gRPC health and reflection", () => {
  it("answer on every user listener, whoever asks, and nothing else does", async () => {
    await using gateway = new GatewayProcess();
    await gateway.started();
    for (const [way, transport] of Object.entries(ways(gateway))) {
      const health = createClient(Health, transport);
      for (const service of ["", "openshell.v1.OpenShell"]) {
        expect((await health.check({ service })).status, way).toBe(Serving.SERVING);
      }
      expect(await codeOf(health.check({ service: "other" }))).toBe("NotFound");
      expect(Object.keys((await health.list({})).statuses)).toEqual(["", "openshell.v1.OpenShell"]);
      expect((await serviceNames(transport)).map((names) => names.toSorted())).toEqual([SERVICES, SERVICES]);
    }
    const anonymous = createClient(OpenShell, gateway.tlsTransport({ withCertificate: false }));
    expect(await codeOf(anonymous.getCurrentUser({}))).toBe("Unauthenticated");
  });

  it("tell watchers that the gateway stops, before their streams end", async () => {
    await using gateway = new GatewayProcess();
    await gateway.started();
    const watches = Object.values(ways(gateway)).flatMap((transport) =>
      ["", "openshell.v1.OpenShell", "other"].map((service) =>
        createClient(Health, transport).watch({ service })[Symbol.asyncIterator](),
      ),
    );
    const each = (...states: readonly string[]) => Array(3).fill(states).flat();
    expect(await Promise.all(watches.map(told))).toEqual(each("SERVING", "SERVING", "SERVICE_UNKNOWN"));
    const next = watches.map(told);
    const startedAt = performance.now();
    expect(await gateway.end("SIGTERM")).toEqual([0, null]);
    expect(performance.now() - startedAt).toBeLessThan(1_000);
    expect(await Promise.all(next)).toEqual(each("NOT_SERVING", "NOT_SERVING", "Unavailable"));
    const last = await Promise.all(watches.filter((_, at) => at % 3 !== 2).map(told));
    expect(last).toEqual(Array(6).fill("Unavailable"));
  });

  it("keep their room when callers leave, those included that never read what they asked for", async () => {
    await using gateway = new GatewayProcess();
    await gateway.started();
    // A connection of a stranger may have few streams at once.
    const strangers = Array.from({ length: STRANGER_REFLECTION_STREAMS / 8 }, () =>
      gateway.tlsTransport({ withCertificate: false }),
    );
    const known = gateway.tlsTransport();
    // More, all in all, than may be open at once.
    for (let round = 0; round < 2; round++) {
      const leave = new AbortController();
      const { signal } = leave;
      const questions = async function* () {
        const messageRequest = { case: "fileByFilename", value: "openshell.proto" } as const;
        for (let asked = 0; asked < 30; asked++) yield { messageRequest };
        await once(signal, "abort");
      };
      const reflections = strangers.flatMap((transport) =>
        Array.from({ length: 8 }, () =>
          createClient(ServerReflection, transport)
            .serverReflectionInfo(questions(), { signal })
            [Symbol.asyncIterator](),
        ),
      );
      const watches = Array.from({ length: HEALTH_WATCHERS / 2 + 8 }, () =>
        createClient(Health, known).watch({}, { signal })[Symbol.asyncIterator](),
      );
      // The first answer is read, the rest fills the window of each stream and waits in the gateway.
      const first = await Promise.all(reflections.map((stream) => stream.next()));
      expect(first.filter(({ done }) => done !== false)).toEqual([]);
      expect(new Set(await Promise.all(watches.map(told)))).toEqual(new Set(["SERVING"]));
      // No stranger gets in now; those who say who they are do.
      expect(await codeOf(serviceNames(strangers[0]!))).toBe("ResourceExhausted");
      expect(await codeOf(serviceNames(known))).toBe("answered");
      const waiting = watches.map(told);
      leave.abort();
      await Promise.all(waiting);
      await expect.poll(() => codeOf(serviceNames(strangers[0]!)), { timeout: 10_000 }).toBe("answered");
    }
  });

  it("let grpcurl list, describe and call with nothing but the address and the client's files", async () => {
    await using gateway = new GatewayProcess();
    const { endpoint, version } = await gateway.started(["--metrics-port", "18082"]);
    const grpcurl = requiredProgram("grpcurl");
    const mtls = join(gateway.clientFolder, "mtls");
    const ca = ["-cacert", join(mtls, "ca.crt")];
    const identity = ["-cert", join(mtls, "tls.crt"), "-key", join(mtls, "tls.key")];
    const address = new URL(endpoint).host;
    const ask = (flags: readonly string[], ...rest: readonly string[]) =>
      runOk([grpcurl, ...ca, "-max-time", "20", ...flags, address, ...rest]);

    expect((await ask(identity, "list")).trim().split("\n")).toEqual(SERVICES);
    const described = await ask(identity, "describe", "openshell.v1.OpenShell");
    expect(described).toContain("rpc CreateSandbox ( .openshell.v1.CreateSandboxRequest )");
    expect(described).toContain('scope: "sandbox:write"');
    expect(JSON.parse(await ask(identity, "openshell.v1.OpenShell/Health"))).toEqual({
      status: "SERVICE_STATUS_HEALTHY",
      version,
    });
    expect(JSON.parse(await ask(identity, "grpc.health.v1.Health/Check"))).toEqual({ status: "SERVING" });
    const scope = '{"workspace_scope": {"workspace": "default"}, "name": "none"}';
    const missing = await runCommand([
      grpcurl,
      ...ca,
      ...identity,
      "-d",
      scope,
      address,
      "openshell.v1.OpenShell/GetSandbox",
    ]);
    expect(missing.stderr).toMatch(/Code: NotFound\s+Message: sandbox not found/);
    // The schema of error details is known too.
    expect(missing.stderr).toContain('"resourceName": "none"');

    // Without a certificate the schema is there, and calls say what is missing.
    expect((await ask([], "list")).trim().split("\n")).toEqual(SERVICES);
    const refused = await runCommand([grpcurl, ...ca, address, "openshell.v1.OpenShell/GetCurrentUser"]);
    expect(refused.stderr).toMatch(/Code: Unauthenticated\s+Message: no client certificate was presented/);
    const hidden = await runCommand([grpcurl, ...ca, address, "describe", "openshell.supervisor.v1.SupervisorGateway"]);
    expect([hidden.exitCode, hidden.stdout]).toEqual([1, ""]);

    const metrics = await (await fetch("http://127.0.0.1:18082/metrics")).text();
    expect(metrics).toContain('openshell_server_grpc_requests_total{method="Check",code="OK"} 1');
    expect(metrics).toMatch(/openshell_server_grpc_requests_total\{method="ServerReflectionInfo",code="OK"\} \d+/);
    expect(metrics).toContain("openshell_server_readiness_database_healthy 1");
  });
});

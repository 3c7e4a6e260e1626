import { Code, ConnectError, createClient, createRouterTransport } from "@connectrpc/connect";
import { unavailable } from "@openshell/api/errors.ts";
import {
  Health,
  type HealthCheckResponse,
  HealthCheckResponse_ServingStatus as Serving,
} from "@openshell/api/generated/grpc/health/v1/health_pb.js";
import type { Clock } from "@openshell/base";
import { describe, expect, it } from "vitest";
import { grpcHealth } from "./grpc-health.ts";
import { HttpLimits } from "./limits.ts";
import { ServingStatus } from "./serving-status.ts";

/** A gateway's status with everything around it in the test's hands. */
class Fixture {
  readonly stopping = new AbortController();
  readonly sleeps: { readonly ms: number; readonly wake: () => void }[] = [];
  readonly clock: Clock = {
    now: () => 0,
    monotonic: () => 0,
    sleep: (ms, { signal } = {}) =>
      new Promise((wake, reject) => {
        this.sleeps.push({ ms, wake });
        signal?.addEventListener("abort", () => reject(signal.reason));
      }),
  };
  healthy = true;
  looks = 0;
  readonly status = new ServingStatus({
    clock: this.clock,
    stopping: this.stopping.signal,
    probe: async () => {
      this.looks += 1;
      return { healthy: this.healthy, latencyMs: 1 };
    },
  });
  readonly client = createClient(
    Health,
    createRouterTransport((router) => void router.service(Health, grpcHealth(this.status))),
  );

  watch(service: string, signal?: AbortSignal): AsyncIterator<HealthCheckResponse> {
    return this.client.watch({ service }, signal === undefined ? {} : { signal })[Symbol.asyncIterator]();
  }

  stop(): void {
    this.status.stop();
    this.stopping.abort(unavailable("the gateway is stopping"));
  }
}

async function told(watch: AsyncIterator<HealthCheckResponse>): Promise<string> {
  try {
    const { done, value } = await watch.next();
    return done ? "end" : Serving[value.status]!;
  } catch (error) {
    return Code[ConnectError.from(error).code]!;
  }
}

const SERVICES = ["", "openshell.v1.OpenShell"];

describe("gRPC health", () => {
  it("serves from the end of the start to the beginning of the stop, while the store answers", async () => {
    const gateway = new Fixture();
    const expectAll = async (status: Serving): Promise<void> => {
      for (const service of SERVICES) expect((await gateway.client.check({ service })).status).toBe(status);
      const { statuses } = await gateway.client.list({});
      expect(Object.entries(statuses).map(([name, one]) => [name, one.status])).toEqual(
        SERVICES.map((name) => [name, status]),
      );
    };
    await expectAll(Serving.NOT_SERVING);
    gateway.status.started();
    await expectAll(Serving.SERVING);
    gateway.healthy = false;
    await expectAll(Serving.NOT_SERVING);
    gateway.healthy = true;
    await expectAll(Serving.SERVING);
    gateway.status.stop();
    await expectAll(Serving.NOT_SERVING);
    gateway.status.started();
    await expectAll(Serving.NOT_SERVING);
  });

  it("knows no other service: NOT_FOUND in Check, SERVICE_UNKNOWN once in Watch", async () => {
    const gateway = new Fixture();
    gateway.status.started();
    for (const service of ["openshell.supervisor.v1.SupervisorGateway", "OpenShell", "x".repeat(100_000)]) {
      const error = await gateway.client.check({ service }).catch(ConnectError.from);
      expect(error).toMatchObject({ code: Code.NotFound, rawMessage: "service not found" });
      expect(JSON.stringify((error as ConnectError).details).length).toBeLessThan(5_000);
    }
    const watch = gateway.watch("other");
    expect(await told(watch)).toBe("SERVICE_UNKNOWN");
    gateway.healthy = false;
    await gateway.status.check();
    gateway.stop();
    expect(await told(watch)).toBe("Unavailable");
  });

  it("tells watchers of changes alone, and ends with UNAVAILABLE after the last one", async () => {
    const gateway = new Fixture();
    const watches = SERVICES.map((service) => gateway.watch(service));
    const all = () => Promise.all(watches.map(told));
    expect(await all()).toEqual(["NOT_SERVING", "NOT_SERVING"]);
    gateway.status.started();
    await gateway.status.check();
    expect(await all()).toEqual(["SERVING", "SERVING"]);
    // Neither looks that find the same nor a store that was away for less than a look are changes.
    for (let look = 0; look < 3; look++) await gateway.status.check();
    gateway.healthy = false;
    await gateway.status.check();
    expect(await all()).toEqual(["NOT_SERVING", "NOT_SERVING"]);
    gateway.healthy = true;
    await gateway.status.check();
    expect(await all()).toEqual(["SERVING", "SERVING"]);
    gateway.stop();
    expect(await all()).toEqual(["NOT_SERVING", "NOT_SERVING"]);
    expect(await all()).toEqual(["Unavailable", "Unavailable"]);
  });

  it("looks at the store by itself only while somebody watches, once for all of them", async () => {
    const gateway = new Fixture();
    gateway.status.started();
    const leave = new AbortController();
    const first = gateway.watch("", leave.signal);
    const second = gateway.watch("", leave.signal);
    expect(gateway.sleeps).toEqual([]);
    expect([await told(first), await told(second)]).toEqual(["SERVING", "SERVING"]);
    const next = [told(first), told(second)];
    await expect.poll(() => gateway.sleeps.map(({ ms }) => ms), { timeout: 5_000 }).toEqual([HttpLimits.healthPollMs]);
    gateway.healthy = false;
    const before = gateway.looks;
    gateway.sleeps[0]!.wake();
    expect(await Promise.all(next)).toEqual(["NOT_SERVING", "NOT_SERVING"]);
    expect(gateway.looks).toBe(before + 1);
    await expect.poll(() => gateway.sleeps.length, { timeout: 5_000 }).toBe(2);

    const ends = [told(first), told(second)];
    leave.abort();
    expect(await Promise.all(ends)).toEqual(["Canceled", "Canceled"]);
    gateway.sleeps[1]!.wake();
    // A new watcher finds no poll under way and begins one.
    const third = gateway.watch("");
    await told(third);
    void told(third);
    await expect.poll(() => gateway.sleeps.length, { timeout: 5_000 }).toBe(3);
    gateway.stop();
  });

  it("refuses one watcher too many, and takes another when one left", async () => {
    const gateway = new Fixture();
    gateway.status.started();
    const leave = new AbortController();
    const watches: AsyncIterator<HealthCheckResponse>[] = [];
    for (let count = 0; count < HttpLimits.strangerHealthWatchers; count++) {
      const watch = gateway.watch("", count === 0 ? leave.signal : undefined);
      watches.push(watch);
      expect(await told(watch)).toBe("SERVING");
    }
    expect(await told(gateway.watch(""))).toBe("ResourceExhausted");
    const first = told(watches[0]!);
    leave.abort();
    expect(await first).toBe("Canceled");
    await expect.poll(() => told(gateway.watch("")), { timeout: 5_000 }).toBe("SERVING");
    gateway.stop();
  });
});

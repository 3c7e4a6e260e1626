import { join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { OpenShell, SandboxPhase, type SandboxPolicy } from "@openshell/api";
import { DeliveryMetricName } from "@openshell/gateway/http/delivery-metrics.ts";
import { build as bundle } from "esbuild";
import { SCOPE, TestGateway } from "../../tests/support/api.ts";
import type { TestInternet } from "../../tests/support/internet/index.ts";
import { BUNDLE, builtins, REQUIRE } from "../../tools/bundle.ts";
import { SIMULATED, SIMULATED_HOST } from "../simulation/names.ts";
import { GrpcClient } from "./grpc.ts";
import { LiveMemory } from "./live-memory.ts";
import { Build } from "./stage.ts";
import { loop } from "./statistics.ts";

const PROGRAMS = resolve(import.meta.dirname, "../simulation");
/** Nothing else listens in a test network. */
const METRICS = "127.0.0.1:9464";
/** Simulated sandboxes are created by so many clients. */
const CREATORS = 16;
const READY_LIMIT_MS = 60_000;
const POLL_MS = 10;

/** What a gateway says of its deliveries. */
export interface DeliveryCounts {
  readonly sessions: number;
  readonly dirty: number;
  /** Outcomes that are stored, by component and outcome: `environment applied`. */
  readonly results: ReadonlyMap<string, number>;
}

/**
 * A gateway with sandboxes that exist in name only, beside real ones: store, sockets, sessions, delivery and API are the
 * product's, in the processes in which they are the product's; what is missing is below the compute driver and the
 * supervisors (bench/simulation).
 */
export class Simulation implements AsyncDisposable {
  readonly gateway: TestGateway;
  readonly live: LiveMemory;
  readonly #build: Build;

  private constructor(build: Build, live: LiveMemory, gateway: TestGateway) {
    this.#build = build;
    this.live = live;
    this.gateway = gateway;
  }

  static async start(net: TestInternet): Promise<Simulation> {
    using undo = new DisposableStack();
    const build = undo.use(Build.copy());
    await bundle({
      ...BUNDLE,
      outdir: build.output,
      entryPoints: [
        { in: join(PROGRAMS, "gateway.ts"), out: "gateway" },
        { in: join(PROGRAMS, "host.ts"), out: SIMULATED_HOST.replace(/\.mjs$/, "") },
      ],
      plugins: [builtins],
      banner: REQUIRE,
    });
    const live = undo.use(new LiveMemory(build, [SIMULATED_HOST]));
    const extra = `[openshell.gateway]\nmetrics_bind_address = "${METRICS}"\n`;
    const gateway = await TestGateway.start(net, { command: [build.launcher], gateway: { extra } });
    undo.move();
    return new Simulation(build, live, gateway);
  }

  client(): GrpcClient {
    return new GrpcClient(this.gateway.folders.userSocket);
  }

  /** Creates them and waits until each is READY. Returns their names. */
  async create(
    count: number,
    spec: { readonly policy: SandboxPolicy; readonly providers: readonly string[] },
    prefix = SIMULATED,
  ): Promise<readonly string[]> {
    const names = Array.from({ length: count }, (_, index) => `${prefix}${index}`);
    const clients = Array.from({ length: CREATORS }, () => this.client());
    const pending = names.toReversed();
    await loop(CREATORS, { count }, async (index) => {
      const client = clients[index]!;
      const name = pending.pop()!;
      await client.unary(OpenShell.method.createSandbox, {
        workspaceScope: SCOPE,
        name,
        spec: { command: ["nothing"], policy: spec.policy, providers: [...spec.providers] },
      });
      const end = performance.now() + READY_LIMIT_MS;
      for (;;) {
        const { sandbox } = await client.unary(OpenShell.method.getSandbox, { workspaceScope: SCOPE, name });
        if (sandbox?.status?.phase === SandboxPhase.READY) return;
        const why = (sandbox?.status?.conditions ?? []).map(({ reason, message }) => `${reason} ${message}`).join("; ");
        if (sandbox?.status?.phase === SandboxPhase.ERROR || performance.now() > end)
          throw new Error(`${name} is ${SandboxPhase[sandbox?.status?.phase ?? 0]}: ${why}`);
        await sleep(POLL_MS);
      }
    });
    for (const client of clients) client[Symbol.dispose]();
    return names;
  }

  /** All simulated supervisors share one process: its collections would be taken for the gateway's work. */
  async collect(): Promise<void> {
    await this.live.collect(SIMULATED_HOST);
  }

  async counts(): Promise<DeliveryCounts> {
    const text = await (await fetch(`http://${METRICS}/metrics`)).text();
    const value = (name: string): number => Number(new RegExp(`^${name} (\\S+)$`, "m").exec(text)?.[1] ?? Number.NaN);
    const results = new Map<string, number>();
    const lines = new RegExp(`^${DeliveryMetricName.results}\\{component="(\\w+)",outcome="(\\w+)"\\} (\\d+)$`, "gm");
    for (const [, component, outcome, count] of text.matchAll(lines))
      results.set(`${component} ${outcome}`, Number(count));
    return { sessions: value(DeliveryMetricName.sessions), dirty: value(DeliveryMetricName.dirty), results };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await this.gateway[Symbol.asyncDispose]();
    } finally {
      this.live[Symbol.dispose]();
      this.#build[Symbol.dispose]();
    }
  }
}

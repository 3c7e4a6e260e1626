import { closeSync } from "node:fs";
import { connect as netConnect, type OnReadOpts, type Socket } from "node:net";
import { networkInterfaces } from "node:os";
import { type Clock, RuntimeError, systemClock } from "@openshell/base";
import type { Boundary } from "@openshell/boundary";
import { type CompiledPolicy, compilePolicy } from "@openshell/policy";
import { type MiddlewareRegistry, NO_MIDDLEWARE } from "../middleware/registry.ts";
import { Capture } from "./capture.ts";
import { BufferBudget, Deadlines } from "./channel.ts";
import type { Dialer, EgressContext } from "./context.ts";
import { type CredentialSource, NO_CREDENTIALS } from "./credential-source.ts";
import { type DeniedEndpoint, parseDeniedEndpoint, parseDeniedName } from "./destination.ts";
import { NameTable } from "./dns/names.ts";
import { DnsServer } from "./dns/server.ts";
import type { EgressEvents } from "./events.ts";
import { type FairShare, FairShares } from "./fair-share.ts";
import { type Accepted, Flow } from "./flow.ts";
import { type EgressNetwork, type Generation, GenerationHolder } from "./generation.ts";
import type { ExecutableHasher } from "./hash.ts";
import { Identifier } from "./identify.ts";
import { LimitEvents } from "./limit-events.ts";
import { DEFAULT_LIMITS, type EgressLimits, LEAVES_PER_SECOND, SAVE_DELAY_MS } from "./limits.ts";
import { TokenBucket } from "./rate.ts";
import { createResolver, type UpstreamResolver } from "./resolve.ts";
import { SkippedMiddleware } from "./skipped-middleware.ts";
import type { SocketTools } from "./socket-tools.ts";
import type { LeafMint } from "./tls/leaf.ts";
import type { TrustStore } from "./tls/trust.ts";
import { UpstreamPool } from "./upstream-pool.ts";

/** Network settings as they are configured. */
export interface NetworkSettings {
  /** PEM bundle that upstream TLS trusts besides the roots of the machine; may be empty. */
  readonly additionalCaPem: string;
  /** `IP:port`; empty means the machine's resolver. */
  readonly resolvers: readonly string[];
  /** `IP`, `IP:port` or `name:port` that no policy can open. */
  readonly alwaysDenied: readonly string[];
}

/** What changes while a sandbox lives. */
export interface GenerationInput {
  readonly policy: CompiledPolicy;
  readonly credentials: CredentialSource;
  /** Absent: none. */
  readonly middleware?: MiddlewareRegistry;
}

/** Before the first publication nothing is allowed. */
const NOTHING: GenerationInput = {
  policy: compilePolicy({ version: 1, networkPolicies: new Map(), networkMiddlewares: new Map() }),
  credentials: NO_CREDENTIALS,
};

export interface SandboxEgressDeps {
  /** `saveState` gets the name table when it grows, for a successor. */
  readonly boundary: Pick<Boundary, "capture" | "identify"> & Partial<Pick<Boundary, "saveState">>;
  readonly events: EgressEvents;
  /** One for each inspection CA; sandboxes of a workspace may share it. */
  readonly leaves: LeafMint;
  /** One for a host. */
  readonly trust: TrustStore;
  /** One for a host. */
  readonly hasher: ExecutableHasher;
  readonly network: NetworkSettings;
  /** Its part of the host's event loop, closed with it. Absent: it has no neighbours. */
  readonly share?: FairShare;
  readonly limits?: Partial<EgressLimits>;
  readonly tools?: SocketTools;
  /** Table of a predecessor (`Boundary.loadState`), empty when there is none. */
  readonly state?: Uint8Array;
  readonly clock?: Clock;
  readonly dial?: Dialer;
  /** Told of defects of this program; the text of an error may hold data of a request. */
  readonly onError?: (error: unknown) => void;
  /** For tests, which cannot have the port of the explicit proxy to themselves. */
  readonly proxyPort?: number;
  /** Replaces name resolution, for tests. */
  readonly resolver?: (resolvers: readonly string[]) => UpstreamResolver;
}

/** Everything that leaves one sandbox. Holds no state outside itself; many of them live in one process. */
export class SandboxEgress implements AsyncDisposable {
  readonly #deps: SandboxEgressDeps;
  readonly #limits: EgressLimits;
  readonly #clock: Clock;
  readonly #generations: GenerationHolder;
  readonly #names: NameTable;
  readonly #dns: DnsServer;
  readonly #capture: Capture;
  readonly #limitEvents: LimitEvents;
  readonly #context: EgressContext;
  readonly #flows = new Set<Flow>();
  #pending = 0;
  #shedReportedAt = Number.NEGATIVE_INFINITY;
  #closed = false;
  #started = false;
  #dnsServed: Promise<void> | undefined;
  #saving: NodeJS.Timeout | undefined;

  /** Throws `network_settings_invalid` when the settings cannot be used. */
  constructor(deps: SandboxEgressDeps) {
    this.#deps = deps;
    this.#limits = { ...DEFAULT_LIMITS, ...deps.limits };
    this.#clock = deps.clock ?? systemClock;
    const now = (): number => this.#clock.monotonic();
    const limitEvents = new LimitEvents(this.#limits, now, (event) => deps.events.limit(event));
    this.#limitEvents = limitEvents;
    const budget = new BufferBudget(this.#limits.bufferedBytes, () => limitEvents.reached("bufferedBytes"));
    const deadlines = new Deadlines(now);
    const dial = deps.dial ?? dialTcp;
    const share = deps.share ?? new FairShares().open();
    const network = this.#network(deps.network);
    this.#generations = new GenerationHolder({ number: 0, ...NOTHING, middleware: NO_MIDDLEWARE, network });
    this.#names = new NameTable((name) => this.#generations.current.policy.mentions(name), this.#limits.dnsNames);
    if (deps.state !== undefined) this.#names.import(deps.state);
    this.#names.onChange = () => this.#saveLater();
    const perSecond = this.#limits.dnsQueriesPerSecond;
    this.#dns = new DnsServer(this.#names, new TokenBucket(perSecond, perSecond, now), share, (limit) =>
      limitEvents.reached(limit),
    );
    const rate = new TokenBucket(this.#limits.newFlowsPerSecond, this.#limits.newFlowsPerSecond * 2, now);
    this.#context = {
      generations: this.#generations,
      identifier: new Identifier({
        identify: (pair) => deps.boundary.identify(pair),
        hasher: deps.hasher,
        now: () => this.#clock.now(),
        turn: () => share.turn(),
      }),
      events: deps.events,
      skipped: new SkippedMiddleware(deps.events),
      leaves: deps.leaves,
      onLimit: (limit) => limitEvents.reached(limit),
      leafRate: new TokenBucket(LEAVES_PER_SECOND, LEAVES_PER_SECOND * 4, now),
      budget,
      deadlines,
      share,
      dial,
      pool: new UpstreamPool(dial, budget, deadlines, share),
      clock: this.#clock,
      onError: deps.onError ?? (() => undefined),
    };
    this.#capture = new Capture({
      sockets: deps.boundary.capture,
      tools: deps.tools,
      ...(deps.proxyPort === undefined ? {} : { proxyPort: deps.proxyPort }),
      names: this.#names,
      share,
      admit: () => {
        const full =
          this.#flows.size >= this.#limits.flows
            ? "flows"
            : this.#pending >= this.#limits.pendingHandshakes
              ? "pendingHandshakes"
              : undefined;
        if (full !== undefined) {
          limitEvents.reached(full);
          return undefined;
        }
        const wait = rate.waitMs;
        if (wait === 0) rate.take();
        else limitEvents.reached("newFlowsPerSecond");
        return wait;
      },
      onFlow: (accepted) => this.#begin(accepted),
      onShed: () => this.#reportShed(),
    });
  }

  /**
   * Takes the captured sockets into service; they belong to this object from here. What failed for want of descriptors is
   * tried again by another call.
   */
  async start(): Promise<void> {
    this.#started = true;
    const { dnsUdp, dnsTcp } = this.#deps.boundary.capture;
    this.#dnsServed ??= this.#dns.start({ udpFd: dnsUdp, tcpFd: dnsTcp });
    await Promise.all([this.#dnsServed, this.#capture.start()]);
  }

  get generation(): Generation {
    return this.#generations.current;
  }

  /** Open connections of the agent. */
  get flows(): number {
    return this.#flows.size;
  }

  /** Bytes taken from one side and not yet by the other. */
  get bufferedBytes(): number {
    return this.#context.budget.used;
  }

  /** Later decisions come from `input`; connections and requests that it no longer allows end before this returns. */
  publish(input: GenerationInput): void {
    const { number, network } = this.#generations.current;
    const { policy, credentials, middleware = NO_MIDDLEWARE } = input;
    this.#generations.publish(Object.freeze({ number: number + 1, policy, credentials, middleware, network }));
  }

  /** The name table, ≤ 256 KiB, for `Boundary.saveState`. Changes with every new name. */
  exportState(): Uint8Array {
    return this.#names.export();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#saving);
    if (!this.#started) {
      closeSync(this.#deps.boundary.capture.dnsUdp);
      closeSync(this.#deps.boundary.capture.dnsTcp);
    }
    for (const flow of this.#flows) flow.destroy();
    this.#context.pool.close();
    this.#context.share[Symbol.dispose]();
    this.#limitEvents.flush();
    await Promise.all([this.#capture[Symbol.asyncDispose](), this.#dns[Symbol.asyncDispose]()]);
  }

  #begin(accepted: Accepted): void {
    if (this.#closed) {
      accepted.socket.resetAndDestroy();
      return;
    }
    this.#pending += 1;
    const flow = new Flow(this.#context, accepted, () => {
      this.#pending -= 1;
      this.#capture.poke();
    });
    this.#flows.add(flow);
    void flow.run().then(() => {
      this.#flows.delete(flow);
      this.#capture.poke();
    });
  }

  #network(settings: NetworkSettings): EgressNetwork {
    const alwaysDenied: DeniedEndpoint[] = [];
    const deniedNames = new Set<string>();
    for (const text of settings.alwaysDenied) {
      const endpoint = parseDeniedEndpoint(text);
      const name = parseDeniedName(text);
      if (endpoint !== undefined) alwaysDenied.push(endpoint);
      else if (name !== undefined) deniedNames.add(name);
      else throw settingsError(`always denied address '${text}'`);
    }
    // Resolvers are asked by the supervisor only; the agent has no business there.
    for (const text of settings.resolvers) {
      const endpoint = parseDeniedEndpoint(text);
      if (endpoint === undefined) throw settingsError(`resolver '${text}'`);
      alwaysDenied.push(endpoint);
    }
    try {
      return {
        resolver: (this.#deps.resolver ?? createResolver)(settings.resolvers),
        upstreamTls: this.#deps.trust.context(settings.additionalCaPem),
        destinations: { alwaysDenied, deniedNames, ownAddresses },
      };
    } catch (cause) {
      throw settingsError("additional CA bundle", cause);
    }
  }

  /** Names come in bursts; one save covers them. What is lost with a crash in between resolves anew. */
  #saveLater(): void {
    const save = this.#deps.boundary.saveState;
    if (save === undefined || this.#saving !== undefined || this.#closed) return;
    this.#saving = setTimeout(() => {
      const done = (): void => {
        this.#saving = undefined;
      };
      this.#saveState().then(done, done);
    }, SAVE_DELAY_MS).unref();
  }

  async #saveState(): Promise<void> {
    await this.#deps.boundary.saveState?.(this.#names.export());
  }

  #reportShed(): void {
    // One event a second: the flood itself must not fill the log.
    const now = this.#clock.monotonic();
    if (now - this.#shedReportedAt < 1_000) return;
    this.#shedReportedAt = now;
    this.#deps.events.connection({
      outcome: "denied",
      origin: "transparent",
      host: "",
      port: 0,
      owners: [],
      policy: "",
      engine: "limits",
      code: "too_many_connections",
      reason: "more connections wait than the sandbox may have",
      next: "Open fewer connections at once, or raise the sandbox's flow limits.",
      generation: this.#generations.current.number,
    });
  }
}

function settingsError(what: string, cause?: unknown): RuntimeError {
  return new RuntimeError("network_settings_invalid", `The network settings cannot be used: ${what}`, {
    next: "Correct [openshell.supervisor.network] in gateway.toml.",
    ...(cause === undefined ? {} : { cause }),
  });
}

function ownAddresses(): readonly string[] {
  return Object.values(networkInterfaces()).flatMap((list) => (list ?? []).map(({ address }) => address));
}

function dialTcp(address: string, port: number, onread?: OnReadOpts): Socket {
  const options = { host: address, port, noDelay: true, allowHalfOpen: true };
  return netConnect(onread === undefined ? options : { ...options, onread });
}

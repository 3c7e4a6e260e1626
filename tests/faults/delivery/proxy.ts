import { setTimeout as sleep } from "node:timers/promises";
import { type Client, createClient } from "@connectrpc/connect";
import { SupervisorGateway } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { HostLink } from "../../support/host-link.ts";
import { spoil } from "./spoil.ts";
import { Stall } from "./stall.ts";
import { hostStep, supervisorStep } from "./steps.ts";

/** The other half of a pair follows within this, or does not follow. Milliseconds. */
const COUNTERPART_MS = 300;
/** So long something is seen to happen at most, after a message that puts something in force, and after its answer. Milliseconds. */
const EFFECT_MS = 200;
const ANSWERED_MS = 15;
/** The last messages of a gateway that ends reach the host before its connection ends. Milliseconds. */
const LAST_MS = 30;

/** What is done to one message, and to the parts beside it. */
export type Action = "drop" | "delay" | "duplicate" | "reorder" | "cut" | "spoil" | "kill-gateway" | "kill-host";

export interface ProxyStrike {
  readonly step: string;
  readonly action: Action;
  /** Of a cut or kill: whether the message still passes. */
  readonly after: boolean;
  /** How long a message is kept, and how long a stream with a gap goes on until its connection ends. Milliseconds. */
  readonly holdMs: number;
  /** Whose messages; any sandbox's where the step is the host's. */
  readonly sandbox: string;
  /** The message was there. */
  struck: boolean;
}

/** How the halves of one pair pass: one at once, the other later. */
export interface Split {
  readonly sandbox: string;
  /** The second one first. */
  readonly swap: boolean;
  /** Between the two. Milliseconds. */
  readonly holdMs: number;
}

export interface ProxyHooks {
  /** Something was done, or its end has come: limits of time count from here. */
  readonly disturb: () => void;
  readonly note: (text: string) => void;
  /** What passes may become visible in that sandbox within so many milliseconds, whatever was said before. */
  readonly effect: (sandbox: string, withinMs: number) => void;
  /** `host`: process id of the host whose message it is. */
  readonly kill: (part: "gateway" | "host", host: number) => void;
}

type Message = Parameters<typeof supervisorStep>[0] | Parameters<typeof hostStep>[0];
interface Connection {
  /** Ends the host's side. */
  readonly end: () => void;
  readonly client: Client<typeof SupervisorGateway>;
  /** Of the host, as its hello says; 0 before. */
  pid: number;
}

/**
 * Stands between hosts and their gateway: takes their connections, opens one to the gateway for each, and passes the
 * messages of their streams on in order, except for those that an armed strike is about. A connection that ends on one
 * side ends on the other.
 */
export class HostProxy implements AsyncDisposable {
  readonly #hooks: ProxyHooks;
  readonly #link: HostLink<Connection>;
  readonly #armed = new Set<ProxyStrike>();
  /** By sandbox. */
  readonly #stalls = new Map<string, Stall>();
  readonly #splits = new Map<string, Split>();
  /** Names of sandboxes by id, as the gateway gave them to hosts. */
  readonly #names = new Map<string, string>();
  /** Messages by step. */
  readonly passed = new Map<string, number>();
  /** Pairs whose halves passed apart: in order, and the other way round. */
  readonly apart = { held: 0, swapped: 0 };
  #closed = false;

  constructor(target: string, hooks: ProxyHooks) {
    this.#hooks = hooks;
    this.#link = new HostLink({
      target: () => target,
      lastMs: LAST_MS,
      open: (transport, end): Connection => ({ end, client: createClient(SupervisorGateway, transport), pid: 0 }),
      service: (called) => ({
        connectHost: (up, context) => {
          const { connection, options } = called(context);
          const step = (message: Message) => hostStep(message as never);
          const known = identified(up, connection);
          const down = connection.client.connectHost(this.#pass(known, step, connection), options);
          return this.#pass(this.#learn(down), step, connection);
        },
        connectSupervisor: (up, context) => {
          const { connection, options } = called(context);
          const step = (message: Message) => supervisorStep(message as never);
          const whose = { sandbox: "" };
          const known = this.#whose(up, whose);
          const down = connection.client.connectSupervisor(this.#pass(known, step, connection, whose), options);
          return this.#pass(down, step, connection, whose);
        },
        relay: (up, context) => {
          const { connection, options } = called(context);
          return connection.client.relay(up, options);
        },
      }),
    });
  }

  listen(path: string): Promise<void> {
    return this.#link.listen(path);
  }

  arm(strike: ProxyStrike): void {
    this.#armed.add(strike);
  }

  disarm(strike: ProxyStrike): void {
    this.#armed.delete(strike);
  }

  /** Keeps the answers to updates of a sandbox until it is released: what changes meanwhile comes as one pair. */
  stall(sandbox: string): Stall {
    const stall = new Stall(() => this.#stalls.delete(sandbox));
    this.#stalls.set(sandbox, stall);
    return stall;
  }

  /** Sends the halves of the sandbox's next pair one after the other. */
  split(split: Split): void {
    this.#splits.set(split.sandbox, split);
  }

  /** Every host has to come back. */
  cutAll(): void {
    for (const connection of this.#link.connections()) this.#cut(connection, "all of them");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    for (const stall of this.#stalls.values()) stall.release();
    await this.#link[Symbol.asyncDispose]();
  }

  async *#learn<T extends Message>(messages: AsyncIterable<T>): AsyncGenerator<T> {
    for await (const message of messages) {
      const { message: content } = message;
      if (content.case === "attach") this.#names.set(content.value.sandboxId, content.value.sandboxName);
      yield message;
    }
  }

  async *#whose<T extends Message>(messages: AsyncIterable<T>, whose: { sandbox: string }): AsyncGenerator<T> {
    for await (const message of messages) {
      const { message: content } = message;
      if (content.case === "hello" && "sandboxId" in content.value)
        whose.sandbox = this.#names.get(content.value.sandboxId) ?? "";
      yield message;
    }
  }

  /** One direction of one stream. */
  async *#pass<T extends Message>(
    messages: AsyncIterable<T>,
    stepOf: (message: T) => string,
    connection: Connection,
    whose?: { readonly sandbox: string },
  ): AsyncGenerator<T> {
    const source = messages[Symbol.asyncIterator]();
    let pending: Promise<IteratorResult<T>> | undefined;
    const take = (): Promise<IteratorResult<T>> => {
      const next = pending ?? source.next();
      pending = undefined;
      return next;
    };
    const isUpdate = (step: string): boolean => step.startsWith("update(");
    let held: Split | undefined;
    try {
      for (;;) {
        const { done, value: message } = await take();
        if (done) return;
        const step = stepOf(message);
        const sandbox = whose?.sandbox ?? "";
        this.passed.set(step, (this.passed.get(step) ?? 0) + 1);
        if (step.startsWith("updateResult(")) await this.#stalls.get(sandbox)?.wait();
        if (isUpdate(step) && held !== undefined) {
          this.apart.held++;
          this.#hooks.note(`  ${step} of ${sandbox} ${held.holdMs} ms after its counterpart`);
          await sleep(held.holdMs);
          held = undefined;
        }
        const strike = this.#strike(step, message, whose);
        this.#effect(step, sandbox);
        if (strike === undefined) {
          const split = isUpdate(step) ? this.#splits.get(sandbox) : undefined;
          this.#splits.delete(split?.sandbox ?? "");
          if (split === undefined) {
            yield message;
            continue;
          }
          if (!split.swap) yield message;
          pending = source.next();
          pending.catch(() => {});
          const other = await Promise.race([pending, sleep(COUNTERPART_MS, undefined)]);
          const paired = other !== undefined && !other.done && isUpdate(stepOf(other.value));
          if (!split.swap) {
            held = paired && stepOf(other.value) !== step ? split : undefined;
            continue;
          }
          if (paired && stepOf(other.value) !== step) {
            pending = undefined;
            this.apart.swapped++;
            this.#hooks.note(`  ${step} of ${sandbox} ${split.holdMs} ms after its counterpart`);
            yield other.value;
            await sleep(split.holdMs);
            this.#effect(step, sandbox);
          }
          yield message;
          continue;
        }
        const { action, holdMs } = strike;
        switch (action) {
          case "drop":
            // A stream loses nothing while its connection lives: what is lost ends with it.
            setTimeout(() => this.#cut(connection, `the gap after ${step}`), holdMs);
            break;
          case "delay":
            await sleep(holdMs);
            this.#hooks.disturb();
            yield message;
            break;
          case "duplicate":
            yield message;
            yield message;
            break;
          case "reorder": {
            pending = source.next();
            pending.catch(() => {});
            const first = await Promise.race([pending, sleep(holdMs, undefined)]);
            this.#hooks.disturb();
            if (first !== undefined && !first.done) {
              pending = undefined;
              this.#hooks.note(`  ${stepOf(first.value)} passed before ${step}`);
              yield first.value;
            }
            yield message;
            break;
          }
          case "spoil":
            if (message.message.case === "update") spoil(message.message.value);
            yield message;
            break;
          case "cut":
            if (strike.after) yield message;
            await sleep(strike.after ? holdMs % LAST_MS : 0);
            this.#cut(connection, step);
            break;
          default: {
            const kill = (): void => {
              this.#hooks.kill(action === "kill-gateway" ? "gateway" : "host", connection.pid);
              this.#hooks.disturb();
            };
            if (!strike.after) kill();
            else setTimeout(kill, holdMs % LAST_MS);
            yield message;
          }
        }
      }
    } finally {
      await source.return?.();
    }
  }

  #effect(step: string, sandbox: string): void {
    if (step.startsWith("update(") || step === "accepted") this.#hooks.effect(sandbox, EFFECT_MS);
    else if (step.startsWith("updateResult(") || step === "bootstrapResult") this.#hooks.effect(sandbox, ANSWERED_MS);
  }

  #cut(connection: Connection, why: string): void {
    if (this.#closed || !this.#link.connections().includes(connection)) return;
    this.#hooks.note(`connection cut: ${why}`);
    connection.end();
    this.#hooks.disturb();
  }

  /** The strike that is about this message, which is struck by it. */
  #strike(step: string, message: Message, whose: { readonly sandbox: string } | undefined): ProxyStrike | undefined {
    const { value } = message.message;
    const id = value !== undefined && "sandboxId" in value ? value.sandboxId : undefined;
    const sandbox = whose?.sandbox ?? (id === undefined ? undefined : this.#names.get(id));
    for (const strike of this.#armed) {
      if (strike.step !== step || (sandbox !== undefined && strike.sandbox !== sandbox)) continue;
      this.#armed.delete(strike);
      strike.struck = true;
      const how =
        strike.action === "cut" || strike.action.startsWith("kill") ? (strike.after ? " after" : " before") : "";
      this.#hooks.note(`${strike.action}${how} ${step} of ${sandbox ?? "a host"} (${strike.holdMs} ms)`);
      this.#hooks.disturb();
      return strike;
    }
    return undefined;
  }
}

/** Keeps the host's process id. */
async function* identified<T extends Message>(messages: AsyncIterable<T>, connection: Connection): AsyncGenerator<T> {
  for await (const message of messages) {
    const { message: content } = message;
    if (content.case === "hello" && "pid" in content.value) connection.pid = content.value.pid;
    yield message;
  }
}

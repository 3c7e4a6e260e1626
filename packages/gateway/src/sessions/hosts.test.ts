import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  AttachSandboxSchema,
  type HostDownlink,
  HostUplinkSchema,
  type SandboxToken,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { type Clock, systemClock } from "@openshell/base";
import { BoundedQueue } from "@openshell/base/queue.ts";
import pino from "pino";
import { expect, it, vi } from "vitest";
import { FrozenClock } from "../api/testing/frozen-clock.ts";
import type { HostLauncher } from "../hosts/types.ts";
import { type HostEvents, HostRegistry } from "./hosts.ts";
import { TOKEN_LIFETIME_MS } from "./limits.ts";
import { TokenTable } from "./tokens.ts";

type Up = MessageInitShape<typeof HostUplinkSchema>["message"];

/** A registry whose hosts have their id for a secret. */
class Stand {
  readonly events: HostEvents = {
    onHeld: () => {},
    onAttachFailed: vi.fn(),
    onDetached: vi.fn(),
    onRenewed: vi.fn(),
  };
  readonly tokens: TokenTable;
  readonly hosts: HostRegistry;

  constructor(clock: Clock) {
    const launcher = {
      authenticate: async (secret: string) => ({ id: secret }),
      connected: async () => {},
      disconnected: () => {},
      holds: () => {},
    } as unknown as HostLauncher;
    const { events } = this;
    this.tokens = new TokenTable(clock);
    this.hosts = new HostRegistry({ clock, log: pino({ level: "silent" }), launcher, tokens: this.tokens, events });
  }

  assign(hostId: string, sandboxId: string): void {
    const attach = (token: SandboxToken) => create(AttachSandboxSchema, { sandboxId, token });
    this.hosts.assign({ hostId, sandboxId, generation: 1n, attach });
  }

  async connect(hostId: string): Promise<HostConnection> {
    const connection = new HostConnection(this.hosts, hostId);
    connection.send({ case: "hello", value: { protocolRevision: 2, hostId, instanceId: "i", pid: 1 } });
    await vi.waitFor(() => expect(connection.told.at(0)?.message.case).toBe("accepted"));
    return connection;
  }
}

class HostConnection {
  readonly told: HostDownlink[] = [];
  readonly #up = new BoundedQueue<ReturnType<typeof create<typeof HostUplinkSchema>>>(10);
  readonly #read: Promise<void>;

  constructor(hosts: HostRegistry, secret: string) {
    this.#read = this.#listen(hosts.serve(secret, this.#up));
  }
  async #listen(down: AsyncIterable<HostDownlink>): Promise<void> {
    for await (const message of down) this.told.push(message);
  }
  send(message: Up): void {
    this.#up.offer(create(HostUplinkSchema, { message: message! }));
  }
  /** The tokens of one sandbox that it was told, with its attachment and later. */
  tokensOf(sandboxId: string): readonly SandboxToken[] {
    return this.told.flatMap(({ message }) => {
      const token = message.case === "attach" ? message.value.token : undefined;
      const given = message.case === "token" ? message.value : token;
      return given?.sandboxId === sandboxId ? [given] : [];
    });
  }
  async close(): Promise<void> {
    this.#up.close();
    await this.#read;
  }
}

it("does not believe a host about a sandbox that another host holds", async () => {
  const stand = new Stand(systemClock);
  stand.assign("mine", "other-sandbox-of-mine");
  stand.assign("theirs", "their-sandbox");
  const host = await stand.connect("mine");
  host.send({ case: "detached", value: { sandboxId: "their-sandbox", generation: 1n } });
  host.send({ case: "attachFailed", value: { sandboxId: "their-sandbox", generation: 1n } });
  host.send({ case: "detached", value: { sandboxId: "other-sandbox-of-mine", generation: 1n } });
  const { onDetached, onAttachFailed } = stand.events;
  await vi.waitFor(() => expect(onDetached).toHaveBeenCalledWith("other-sandbox-of-mine", 1n));
  expect(onDetached).toHaveBeenCalledTimes(1);
  expect(onAttachFailed).not.toHaveBeenCalled();
  await host.close();
});

it("a host that stays connected has a good token of the same epoch at all times (#3409, #3411)", async () => {
  const clock = new FrozenClock();
  const stand = new Stand(clock);
  stand.assign("h", "s");
  const host = await stand.connect("h");
  await vi.waitFor(() => expect(host.tokensOf("s")).toHaveLength(1));
  const { epoch } = host.tokensOf("s")[0]!;
  for (let passed = 0; passed < 3 * TOKEN_LIFETIME_MS; passed += 30_000) {
    clock.advance(30_000);
    host.send({ case: "heartbeat", value: {} });
    await new Promise((resolve) => setImmediate(resolve));
    expect(stand.tokens.verify(host.tokensOf("s").at(-1)!.token), `after ${passed} ms`).toMatchObject({ epoch });
  }
  expect(host.tokensOf("s").length).toBeGreaterThan(3);
  await host.close();
});

it("a host whose tokens ended while the gateway was away gets new ones when it comes back (#1603, kaiden#2654)", async () => {
  const clock = new FrozenClock();
  const stand = new Stand(clock);
  stand.assign("h", "s");
  const before = await stand.connect("h");
  await vi.waitFor(() => expect(before.tokensOf("s")).toHaveLength(1));
  await before.close();
  clock.advance(10 * TOKEN_LIFETIME_MS);
  expect(stand.tokens.verify(before.tokensOf("s")[0]!.token)).toBeUndefined();
  const after = await stand.connect("h");
  await vi.waitFor(() => expect(after.tokensOf("s")).toHaveLength(1));
  expect(stand.tokens.verify(after.tokensOf("s")[0]!.token)).toMatchObject({ sandboxId: "s" });
  await after.close();
});

import { create } from "@bufbuild/protobuf";
import {
  type AttachSandbox,
  AttachSandboxSchema,
  HostAcceptedSchema,
  type HostDownlink,
  HostDownlinkSchema,
  type HostUplink,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { systemClock } from "@openshell/base";
import { BoundedQueue } from "@openshell/base/queue.ts";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Limits } from "../limits.ts";
import type { SandboxSupervisor, SupervisorEnd } from "../session/supervisor.ts";
import { Host } from "./host.ts";
import type { GatewayLink } from "./link.ts";

/** A supervisor that runs until it is disposed. */
function supervisor(events: string[], name: string): SandboxSupervisor {
  const end = Promise.withResolvers<SupervisorEnd>();
  return {
    mainProcessRunning: false,
    renew: () => {},
    run: () => end.promise,
    [Symbol.asyncDispose]: async () => {
      events.push(`${name} disposed`);
      end.resolve({ kind: "detached", reason: "" });
    },
  } as unknown as SandboxSupervisor;
}

describe("Host", () => {
  const events: string[] = [];
  let down: BoundedQueue<HostDownlink>;
  let up: AsyncIterator<HostUplink>;
  let open: (assignment: AttachSandbox) => Promise<SandboxSupervisor>;
  let host: Host;
  let dials: number;
  let refuse: boolean;
  const log = { info: vi.fn(), warn: vi.fn(), error: vi.fn() };
  beforeEach(() => {
    events.length = 0;
    dials = 0;
    refuse = false;
    log.warn.mockClear();
    down = new BoundedQueue(100);
    const link = {
      reset: () => {},
      sessions: {
        connectHost: (messages: AsyncIterable<HostUplink>) => {
          dials += 1;
          if (refuse) throw new Error("nobody listens");
          up = messages[Symbol.asyncIterator]();
          return down;
        },
      },
    } as unknown as GatewayLink;
    host = new Host({
      hostId: "h",
      instanceId: "i",
      build: "b",
      secret: "s",
      link,
      clock: systemClock,
      log,
      open: (assignment) => open(assignment),
    });
  });
  afterEach(() => host[Symbol.asyncDispose]());
  const tell = (message: HostDownlink["message"]) => down.offer(create(HostDownlinkSchema, { message }));
  const attach = () => create(AttachSandboxSchema, { sandboxId: "x", generation: 1n });

  it("says that it let go of a sandbox only when an attachment under way has ended as well", async () => {
    const opening = Promise.withResolvers<SandboxSupervisor>();
    open = () => opening.promise;
    void host.run();
    tell({ case: "attach", value: attach() });
    tell({ case: "detach", value: { sandboxId: "x", generation: 1n } as never });
    await up.next();
    const next = up.next().then((message) => events.push(String(message.value?.message.case)));
    await new Promise((resolve) => setTimeout(resolve, 20));
    opening.resolve(supervisor(events, "first"));
    await next;
    expect(events).toEqual(["first disposed", "detached"]);
  });

  it("attaches anew only after it let go, so that the newer attachment is the one that stays", async () => {
    const first = Promise.withResolvers<SandboxSupervisor>();
    let opens = 0;
    open = async () => {
      opens += 1;
      events.push(`open ${opens}`);
      return opens === 1 ? first.promise : supervisor(events, "second");
    };
    void host.run();
    tell({ case: "attach", value: attach() });
    tell({ case: "detach", value: { sandboxId: "x", generation: 1n } as never });
    tell({ case: "attach", value: attach() });
    await new Promise((resolve) => setTimeout(resolve, 20));
    first.resolve(supervisor(events, "first"));
    await vi.waitFor(() => expect(events).toEqual(["open 1", "first disposed", "open 2"]));
  });

  it("tells once that the gateway is away, however long it is", async () => {
    refuse = true;
    void host.run();
    await vi.waitFor(() => expect(dials).toBeGreaterThan(4), { timeout: 3_000 });
    expect(log.warn).toHaveBeenCalledTimes(1);
  });

  it("lived on for ever when its gateway was killed before it knew the host, and no sandbox was given to it", async () => {
    const limit = vi.spyOn(Limits, "lonelyMs", "get").mockReturnValue(100 as 60_000);
    refuse = true;
    const end = await host.run();
    expect(end).toEqual({ reason: "no gateway and no sandboxes", code: 0 });
    expect(dials).toBeGreaterThan(1);
    limit.mockRestore();
  });

  it("stays without a gateway as long as it has a sandbox", async () => {
    const limit = vi.spyOn(Limits, "lonelyMs", "get").mockReturnValue(200 as 60_000);
    open = async () => supervisor(events, "first");
    let ended = false;
    const end = host.run().then((value) => {
      ended = true;
      return value;
    });
    tell({ case: "accepted", value: create(HostAcceptedSchema) });
    tell({ case: "attach", value: attach() });
    await vi.waitFor(() => expect(log.info).toHaveBeenCalledWith(expect.anything(), "attached"));
    await new Promise((resolve) => setTimeout(resolve, 400));
    // It is there all the time: nothing counts before the gateway has gone.
    expect(ended).toBe(false);
    refuse = true;
    down.close();
    await new Promise((resolve) => setTimeout(resolve, 600));
    expect(ended).toBe(false);
    limit.mockRestore();
    await host[Symbol.asyncDispose]();
    expect(await end).toEqual({ reason: "stopped", code: 0 });
  });

  it("names in its heartbeat whose evidence has lapsed: what nothing vouches for, and what is not open yet", async () => {
    const interval = vi.spyOn(Limits, "heartbeatMs", "get").mockReturnValue(20 as 5_000);
    const opening = Promise.withResolvers<SandboxSupervisor>();
    const lapsed = new Set(["b"]);
    open = async ({ sandboxId }) => {
      if (sandboxId === "c") return opening.promise;
      const opened = supervisor(events, sandboxId);
      return Object.defineProperty(opened, "readinessLapsed", { get: () => lapsed.has(sandboxId) });
    };
    void host.run();
    for (const sandboxId of ["a", "b", "c"])
      tell({ case: "attach", value: create(AttachSandboxSchema, { sandboxId, generation: 1n }) });
    tell({ case: "accepted", value: create(HostAcceptedSchema) });
    const named = async (count: number): Promise<readonly string[]> => {
      for (;;) {
        const message = (await up.next()).value?.message;
        if (message?.case === "heartbeat" && message.value.readinessLapsed.length === count)
          return message.value.readinessLapsed;
      }
    };
    expect(await named(2)).toEqual(["b", "c"]);
    lapsed.clear();
    expect(await named(1)).toEqual(["c"]);
    opening.resolve(supervisor(events, "c"));
    interval.mockRestore();
  });

  it("said no more that it lives after a moment without descriptors", async () => {
    const interval = vi.spyOn(Limits, "heartbeatMs", "get").mockReturnValue(20 as 5_000);
    const memory = vi.spyOn(process.memoryUsage, "rss").mockImplementation(() => {
      throw new Error("EMFILE: too many open files, uv_resident_set_memory");
    });
    void host.run();
    tell({ case: "accepted", value: create(HostAcceptedSchema) });
    const beat = async (): Promise<bigint> => {
      for (;;) {
        const message = (await up.next()).value?.message;
        if (message?.case === "heartbeat") return message.value.residentBytes;
      }
    };
    expect(await beat()).toBe(0n);
    memory.mockRestore();
    await vi.waitFor(async () => expect(await beat()).toBeGreaterThan(0n));
    interval.mockRestore();
  });
});

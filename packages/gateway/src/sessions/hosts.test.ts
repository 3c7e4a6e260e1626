import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  AttachSandboxSchema,
  HostUplinkSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { systemClock } from "@openshell/base";
import { BoundedQueue } from "@openshell/base/queue.ts";
import pino from "pino";
import { expect, it, vi } from "vitest";
import type { HostLauncher } from "../hosts/types.ts";
import { type HostEvents, HostRegistry } from "./hosts.ts";
import { TokenTable } from "./tokens.ts";

type Up = MessageInitShape<typeof HostUplinkSchema>["message"];

it("does not believe a host about a sandbox that another host holds", async () => {
  const launcher = {
    authenticate: async (secret: string) => ({ id: secret }),
    connected: async () => {},
    disconnected: () => {},
    holds: () => {},
  } as unknown as HostLauncher;
  const events: HostEvents = { onHeld: () => {}, onAttachFailed: vi.fn(), onDetached: vi.fn(), onRenewed: vi.fn() };
  const tokens = new TokenTable(systemClock);
  const hosts = new HostRegistry({ clock: systemClock, log: pino({ level: "silent" }), launcher, tokens, events });
  const assign = (hostId: string, sandboxId: string) =>
    hosts.assign({ hostId, sandboxId, generation: 1n, attach: () => create(AttachSandboxSchema) });
  assign("mine", "other-sandbox-of-mine");
  assign("theirs", "their-sandbox");
  const up = new BoundedQueue<ReturnType<typeof create<typeof HostUplinkSchema>>>(10);
  const send = (message: Up) => up.offer(create(HostUplinkSchema, { message: message! }));
  const down = hosts.serve("mine", up);
  send({ case: "hello", value: { protocolRevision: 2, hostId: "mine", instanceId: "i", pid: 1 } });
  await down.next();
  send({ case: "detached", value: { sandboxId: "their-sandbox", generation: 1n } });
  send({ case: "attachFailed", value: { sandboxId: "their-sandbox", generation: 1n } });
  send({ case: "detached", value: { sandboxId: "other-sandbox-of-mine", generation: 1n } });
  await vi.waitFor(() => expect(events.onDetached).toHaveBeenCalledWith("other-sandbox-of-mine", 1n));
  expect(events.onDetached).toHaveBeenCalledTimes(1);
  expect(events.onAttachFailed).not.toHaveBeenCalled();
  await down.return();
  up.close();
});

import { EventEmitter } from "node:events";
import type { Socket } from "node:net";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Capture, type CaptureDeps } from "./capture.ts";
import type { Accepted } from "./flow.ts";

/** Servers that a test plays the kernel for: what it hands over comes all at once, as Node hands it over. */
const kernel = vi.hoisted(() => ({ connect: [] as ((socket: unknown) => void)[] }));
vi.mock(import("node:net"), async (original) => {
  const createServer = (_options: object, onConnection: (socket: unknown) => void) =>
    Object.assign(new EventEmitter(), {
      listen: (_where: object, done: () => void) => {
        kernel.connect.push(onConnection);
        done();
      },
      close: (done?: () => void) => {
        kernel.connect = kernel.connect.filter((one) => one !== onConnection);
        done?.();
      },
    });
  return { ...(await original()), createServer: createServer as never };
});

const waiting: (() => void)[] = [];
const share = {
  mine: false,
  alone: false,
  admissionPause: 0,
  admitted: vi.fn(),
  ready: () => share.mine,
  later: (work: () => void) => waiting.push(work),
};
const turn = (): void => waiting.splice(0).forEach((work) => void work());
let taken: number[];
let capture: Capture;

/** Connections come in on the listening socket, if anybody listens. */
function arrive(...ports: number[]): void {
  const [connect] = kernel.connect;
  for (const remotePort of ports) {
    const socket = { remoteAddress: "127.0.0.1", remotePort, localAddress: "192.0.2.1", localPort: 80 };
    connect!(Object.assign(new EventEmitter(), socket, { resetAndDestroy: vi.fn() }) as unknown as Socket);
  }
}
const listening = (): boolean => kernel.connect.length > 0;

beforeEach(async () => {
  Object.assign(share, { mine: false, alone: false, admissionPause: 0 });
  share.admitted.mockClear();
  waiting.length = 0;
  taken = [];
  capture = new Capture({
    sockets: { mode: "tproxy", tcp: [{ family: 4, port: 0, fd: 1_000_000 }] },
    tools: { duplicate: (fd: number) => fd, originalDestination: () => ({ address: "192.0.2.1", port: 80 }) },
    share,
    admit: () => 0,
    onFlow: ({ pair }: Accepted) => taken.push(pair.local.port),
    onShed: () => {},
  } as unknown as CaptureDeps);
  await capture.start();
});
afterEach(async () => {
  vi.useRealTimers();
  // The descriptor is none.
  await expect(capture[Symbol.asyncDispose]()).rejects.toThrow();
  kernel.connect = [];
});

test("a sandbox that had its slice: the connection waits for its turn, further ones in the kernel", () => {
  arrive(1);
  expect([taken, listening(), waiting.length]).toEqual([[], false, 1]);
  turn();
  expect([taken, listening()]).toEqual([[1], true]);
});

test("those that came at once are taken one a turn, in order, and accepting goes on after the last", () => {
  arrive(1, 2, 3);
  turn();
  expect([taken, listening(), waiting.length]).toEqual([[1], false, 1]);
  turn();
  expect([taken, listening()]).toEqual([[1, 2], false]);
  turn();
  expect([taken, listening(), waiting.length]).toEqual([[1, 2, 3], true, 0]);
});

test("in its turn and without neighbours all are taken at once", () => {
  Object.assign(share, { mine: true, alone: true });
  arrive(1, 2, 3);
  expect([taken, listening(), waiting.length]).toEqual([[1, 2, 3], true, 0]);
  expect(share.admitted).toHaveBeenCalledTimes(3);
});

test("a sandbox that is to take connections more slowly leaves them in the kernel for as long, and then takes one in its turn", () => {
  vi.useFakeTimers();
  Object.assign(share, { mine: true, admissionPause: 5 });
  arrive(1, 2);
  expect([taken, listening(), waiting.length]).toEqual([[], false, 0]);
  vi.advanceTimersByTime(4);
  expect(waiting).toHaveLength(0);
  vi.advanceTimersByTime(1);
  expect([taken, waiting.length]).toEqual([[], 1]);
  share.admissionPause = 0;
  turn();
  expect([taken, listening()]).toEqual([[1], false]);
  turn();
  expect([taken, listening()]).toEqual([[1, 2], true]);
  expect(share.admitted).toHaveBeenCalledTimes(2);
});

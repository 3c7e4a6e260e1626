import { fstatSync } from "node:fs";
import { RuntimeError } from "@openshell/base";
import type { BoundaryState, CaptureMode, CaptureSockets, IsolationLayer } from "../boundary.ts";
import { boundaryLost, boundaryUntrusted } from "./boundary-error.ts";
import { ByteWriter } from "./bytes.ts";
import { closeDescriptors, MessageChannel } from "./channel.ts";
import { checkSocket, peerCredentials } from "./descriptors.ts";
import { errnoName } from "./errno.ts";
import { FRAME_ATTACH_MAIN, FRAME_HELLO, FRAME_IDENTIFIER, FRAME_SOCKETS, readLayers } from "./frames.ts";
import { LocalBoundary } from "./local-boundary.ts";
import { CAPTURE_MODES, encodeHello, SOCKET_CAPTURE, SOCKET_DNS_TCP, SOCKET_DNS_UDP, STATES } from "./messages.ts";
import { type Addon, loadAddon } from "./native.ts";

/** Attaching to an init that listens takes milliseconds; a fake one must not hold a host up. */
export const ATTACH_LIMIT_MS = 5_000;
/** Listeners of 128 ports in both families, and two DNS sockets. */
const LISTENERS_MAX = 2 * 128 + 2;

export interface AttachOptions {
  /** The plan's control socket. */
  readonly socketPath: string;
  /** The plan's nonce. */
  readonly nonce: Uint8Array;
  /** Names this host process in init's log of attachments. */
  readonly instanceId: string;
  /** What the launcher reported; each is checked against what answers. */
  readonly expected: {
    readonly sandboxId: string;
    readonly generation: bigint;
    readonly netnsCookie: bigint;
    /** Init's pid on the host: the kernel says who listens. Undefined where pids differ (another pid namespace). */
    readonly pid?: number | undefined;
  };
  /** Default: the addon of this build. */
  readonly addon?: Addon;
}

interface Hello {
  readonly state: BoundaryState;
  readonly mode: CaptureMode;
  readonly frozen: boolean;
  readonly listeners: number;
  readonly layers: readonly IsolationLayer[];
  readonly pidFd: number | undefined;
}

interface ListenerRow {
  readonly kind: number;
  readonly family: 4 | 6;
  readonly port: number;
  readonly fd: number;
}

/**
 * Attaches to a sandbox's init. The latest attachment wins: an older host of the same sandbox is cut off. The workload
 * of a re-attached boundary stays frozen until `resume`.
 *
 * Rejects with `boundary_lost` when nobody listens, `boundary_untrusted` when what answers is not the init that the
 * launcher started, `boundary_revision` when no protocol revision is common.
 */
export async function attachLocalBoundary(options: AttachOptions): Promise<LocalBoundary> {
  const addon = options.addon ?? loadAddon();
  const fd = connect(addon, options.socketPath);
  const owned: number[] = [];
  let pidFd: number | undefined;
  const routes = { boundary: undefined as LocalBoundary | undefined, closed: undefined as string | undefined };
  let channel: MessageChannel | undefined;
  let identifier: MessageChannel | undefined;
  try {
    checkPeer(addon, fd, options.expected.pid);
    channel = new MessageChannel(addon, fd, {
      onEvent: (message) => {
        if (routes.boundary === undefined) closeDescriptors(message.fds);
        else routes.boundary.onEvent(message);
      },
      onClose: (reason) => {
        routes.closed = reason;
        routes.boundary?.onClosed(reason);
      },
    });
    const hello = await sayHello(channel, options);
    pidFd = hello.pidFd;
    const rows = await fetchListeners(channel, hello.listeners, owned);
    const capture = checkListeners(addon, rows, hello.mode, options.expected.netnsCookie);
    identifier = await openIdentifier(addon, channel);
    const boundary = new LocalBoundary({
      addon,
      channel,
      identifier,
      openIdentifier: (on) => openIdentifier(addon, on),
      sandboxId: options.expected.sandboxId,
      generation: options.expected.generation,
      state: hello.state,
      frozen: hello.frozen,
      capture,
      isolation: hello.layers,
      pidFd: hello.pidFd,
    });
    routes.boundary = boundary;
    // The main process may end between hello and this answer; both tell the same state then.
    if (hello.state === "main_started" || hello.state === "main_exited") {
      await channel.request(FRAME_ATTACH_MAIN, Buffer.alloc(0), (message) => boundary.adoptMain(message));
    }
    if (routes.closed !== undefined) throw boundaryLost(routes.closed);
    return boundary;
  } catch (error) {
    // From its making on the boundary itself closes the connections and init's pidfd; the sockets are nobody's yet.
    void routes.boundary?.[Symbol.asyncDispose]();
    if (routes.boundary === undefined) {
      identifier?.close("attachment failed");
      channel?.close("attachment failed");
      if (pidFd !== undefined) closeDescriptors([pidFd]);
    }
    closeDescriptors(owned);
    throw error;
  }
}

/** What connect(2) says of a socket that has no listener. */
const NOBODY: ReadonlySet<string> = new Set(["ECONNREFUSED", "ENOENT"]);

function connect(addon: Addon, path: string): number {
  try {
    return addon.connect(path);
  } catch (cause) {
    const { errno } = cause as { readonly errno?: number };
    const code = errno === undefined ? "" : errnoName(-errno);
    if (errno !== undefined && !NOBODY.has(code)) {
      throw new RuntimeError("boundary_lost", `The sandbox's control socket cannot be reached now (${code})`, {
        next: "Try again",
        cause,
      });
    }
    throw new RuntimeError("boundary_lost", `Nobody listens on the sandbox's control socket ${path}`, {
      next: "The sandbox has stopped: start it again",
      cause,
    });
  }
}

function checkPeer(addon: Addon, fd: number, pid: number | undefined): void {
  try {
    const peer = peerCredentials(addon, fd);
    if (pid !== undefined && peer.pid !== pid) throw boundaryUntrusted(`process ${peer.pid} listens instead of ${pid}`);
  } catch (error) {
    closeDescriptors([fd]);
    throw error;
  }
}

function sayHello(channel: MessageChannel, options: AttachOptions): Promise<Hello> {
  const { expected } = options;
  return channel
    .request(
      FRAME_HELLO,
      encodeHello(options.nonce, options.instanceId),
      ({ payload, fds }): Hello => {
        payload.u32();
        const sandboxId = payload.string();
        const generation = payload.u64();
        const state = STATES[payload.u8()];
        const mode = CAPTURE_MODES[payload.u8()];
        const cookie = payload.u64();
        const frozen = payload.flag();
        const listeners = payload.u32();
        const layers = readLayers(payload);
        if (sandboxId !== expected.sandboxId) throw boundaryUntrusted("it is another sandbox's");
        if (generation !== expected.generation) throw boundaryUntrusted("it is of another generation");
        if (cookie !== expected.netnsCookie) throw boundaryUntrusted("it is in another network namespace");
        if (state === undefined || mode === undefined || listeners > LISTENERS_MAX || fds.length > 1) {
          throw boundaryUntrusted("its greeting is malformed");
        }
        return { state, mode, frozen, listeners, layers, pidFd: fds[0] };
      },
      ATTACH_LIMIT_MS,
    )
    .catch((error: unknown) => {
      if (error instanceof RangeError) throw boundaryUntrusted("its greeting is malformed");
      throw error;
    });
}

async function fetchListeners(
  channel: MessageChannel,
  total: number,
  owned: number[],
): Promise<readonly ListenerRow[]> {
  const rows: ListenerRow[] = [];
  while (rows.length < total) {
    const request = new ByteWriter().u32(rows.length).finish();
    const part = await channel.request(FRAME_SOCKETS, request, ({ payload, fds }) => {
      const count = payload.u8();
      if (count === 0 || count !== fds.length) throw boundaryUntrusted("its list of sockets is malformed");
      return fds.map((fd): ListenerRow => {
        const kind = payload.u8();
        const family = payload.u8() === 6 ? 6 : 4;
        return { kind, family, port: payload.u16(), fd };
      });
    });
    rows.push(...part);
    owned.push(...part.map((row) => row.fd));
  }
  return rows;
}

function checkListeners(
  addon: Addon,
  rows: readonly ListenerRow[],
  mode: CaptureMode,
  netnsCookie: bigint,
): CaptureSockets {
  for (const { kind, family, fd } of rows) {
    checkSocket(addon, fd, { transport: kind === SOCKET_DNS_UDP ? "udp" : "tcp", family, netnsCookie });
  }
  const tcp = rows.filter((row) => row.kind === SOCKET_CAPTURE).map(({ fd, family, port }) => ({ fd, family, port }));
  const dnsUdp = rows.find((row) => row.kind === SOCKET_DNS_UDP)?.fd;
  const dnsTcp = rows.find((row) => row.kind === SOCKET_DNS_TCP)?.fd;
  if (dnsUdp === undefined || dnsTcp === undefined || tcp.length + 2 !== rows.length) {
    throw boundaryUntrusted("its set of sockets is not complete");
  }
  return { mode, tcp, dnsUdp, dnsTcp };
}

/** A connection to the process that answers identify; init starts that process again when it has died. */
async function openIdentifier(addon: Addon, channel: MessageChannel): Promise<MessageChannel> {
  return channel.request(FRAME_IDENTIFIER, Buffer.alloc(0), ({ fds }) => {
    const [fd] = fds;
    if (fd === undefined || fds.length !== 1 || !fstatSync(fd).isSocket()) {
      throw boundaryUntrusted("its identifier connection is missing");
    }
    return new MessageChannel(addon, fd, { onEvent: ({ fds: extra }) => closeDescriptors(extra), onClose: () => {} });
  });
}

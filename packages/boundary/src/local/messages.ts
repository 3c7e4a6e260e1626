import type { CaptureMode, Restrictions, SocketOwner, SocketPair, SpawnSpec } from "../boundary.ts";
import { type ByteReader, ByteWriter } from "./bytes.ts";
import type { Message } from "./channel.ts";
import { PROTOCOL_REVISION } from "./frames.ts";

/** Payloads of the control protocol; each matches one reader or writer in native/init. */

export const CAPTURE_MODES: readonly (CaptureMode | undefined)[] = [undefined, "sk_lookup", "nft", "listener_per_port"];
export const STATES = ["fresh", "confirmed", "main_started", "main_exited"] as const;
export const SOCKET_CAPTURE = 1;
export const SOCKET_DNS_UDP = 2;
export const SOCKET_DNS_TCP = 3;

export function encodeHello(nonce: Uint8Array, instanceId: string): Buffer {
  return new ByteWriter().u32(PROTOCOL_REVISION).u32(PROTOCOL_REVISION).bytes(nonce).string(instanceId).finish();
}

export function encodeRestrictions(r: Restrictions): Buffer {
  const w = new ByteWriter().flag(r.landlock !== undefined);
  w.u64(r.landlock?.handledFs ?? 0n)
    .u64(r.landlock?.handledNet ?? 0n)
    .u64(r.landlock?.scoped ?? 0n);
  const rules = r.landlock?.rules ?? [];
  w.u32(rules.length);
  for (const rule of rules) w.string(rule.path).u64(rule.access).flag(rule.required);
  w.bytes(r.seccomp).u32(r.umask).u32(r.rlimits.length);
  for (const limit of r.rlimits) w.u32(limit.resource).u64(limit.soft).u64(limit.hard);
  return w.finish();
}

export function encodeSpawn(spec: SpawnSpec): Buffer {
  const pty = spec.stdio.kind === "pty" ? spec.stdio : undefined;
  const w = new ByteWriter().u8(pty === undefined ? 0 : 1);
  w.u16(Math.min(pty?.rows ?? 0, 65_535)).u16(Math.min(pty?.columns ?? 0, 65_535));
  w.string(spec.cwd).u32(spec.argv.length);
  for (const argument of spec.argv) w.string(argument);
  const env = Object.entries(spec.env);
  w.u32(env.length);
  for (const [name, value] of env) w.string(`${name}=${value}`);
  return w.finish();
}

/** A spawn whose process tries canaries in place of executing a program. */
export function encodeProbe(canaries: readonly string[]): Buffer {
  const w = new ByteWriter().u8(2).u16(0).u16(0).string("/").u32(canaries.length);
  for (const canary of canaries) w.string(canary);
  return w.u32(0).finish();
}

/** What the process of a probe wrote: a line a canary, one whole number each. Undefined unless that is exactly so. */
export function decodeAnswers(text: string, count: number): readonly bigint[] | undefined {
  const lines = text.split("\n");
  if (lines.pop() !== "" || lines.length !== count) return undefined;
  return lines.every((line) => /^-?\d{1,19}$/.test(line)) ? lines.map(BigInt) : undefined;
}

/** Bytes of an address in text form; throws RangeError when it is not one of that family. */
export function addressBytes(address: string, family: 4 | 6): Buffer {
  if (family === 4) {
    const octets = address.split(".").map(Number);
    if (octets.length !== 4 || octets.some((o) => !Number.isInteger(o) || o < 0 || o > 255)) {
      throw new RangeError(`not an IPv4 address: ${address}`);
    }
    return Buffer.from(octets);
  }
  const host = new URL(`http://[${address.split("%")[0]}]/`).hostname.slice(1, -1);
  const [head = "", tail] = host.split("::");
  const left = head === "" ? [] : head.split(":");
  const right = tail === undefined || tail === "" ? [] : tail.split(":");
  const zeros = Array.from({ length: 8 - left.length - right.length }, () => "0");
  const out = Buffer.alloc(16);
  for (const [i, group] of [...left, ...zeros, ...right].entries())
    out.writeUInt16BE(Number.parseInt(group, 16), 2 * i);
  return out;
}

export function encodeIdentify(pair: SocketPair): Buffer {
  const w = new ByteWriter().u8(pair.family);
  w.bytes(addressBytes(pair.local.address, pair.family)).u16(pair.local.port);
  w.bytes(addressBytes(pair.remote.address, pair.family)).u16(pair.remote.port);
  return w.finish();
}

function readProcess(r: ByteReader): { readonly pid: number; readonly exe: string } {
  return { pid: r.u32(), exe: r.string() };
}

/** Owners with the descriptors of their executables; `keyOf` asks the descriptor itself. */
export function decodeOwners(
  message: Message,
  keyOf: (fd: number) => NonNullable<SocketOwner["exeKey"]>,
): readonly SocketOwner[] {
  const r = message.payload;
  r.flag();
  const owners: SocketOwner[] = [];
  let next = 0;
  for (let left = r.u8(); left > 0; left--) {
    const { pid, exe } = readProcess(r);
    const exeFd = r.flag() ? message.fds[next++] : undefined;
    const ancestors = Array.from({ length: r.u8() }, () => readProcess(r));
    owners.push({ pid, exe, exeFd, exeKey: exeFd === undefined ? undefined : keyOf(exeFd), ancestors });
  }
  if (next !== message.fds.length) throw new RangeError("more descriptors than owners");
  return owners;
}

/**
 * RelayUplink messages with an ExecSandboxEvent, in their final wire form: the gateway passes the event on without
 * decoding it, and nothing between a pipe and the socket copies output again. Field numbers: supervisor.proto,
 * openshell.proto. The tests decode what is written here.
 */
const EXEC_EVENT = 0x12;
const STDOUT = 0x0a;
const STDERR = 0x12;
const EXIT = 0x1a;
const DATA = 0x0a;
const EXIT_CODE = 0x08;

function varint(value: number): number[] {
  const bytes: number[] = [];
  let rest = value;
  while (rest > 0x7f) {
    bytes.push((rest & 0x7f) | 0x80);
    rest = Math.floor(rest / 128);
  }
  bytes.push(rest);
  return bytes;
}

/** Fields around `data`, outermost first: each one's length counts everything within. */
function wrap(tags: readonly number[], data: Uint8Array): Uint8Array {
  let head: number[] = [];
  for (const tag of tags.toReversed()) head = [tag, ...varint(head.length + data.length), ...head];
  const bytes = Buffer.allocUnsafe(head.length + data.length);
  bytes.set(head);
  bytes.set(data, head.length);
  return bytes;
}

/** Output of a process. */
export function outputUplink(stream: "stdout" | "stderr", data: Uint8Array): Uint8Array {
  return wrap([EXEC_EVENT, stream === "stdout" ? STDOUT : STDERR, DATA], data);
}

/** The end of a process. `code` is 0…255. */
export function exitUplink(code: number): Uint8Array {
  return wrap([EXEC_EVENT, EXIT], Uint8Array.from(code === 0 ? [] : [EXIT_CODE, ...varint(code)]));
}

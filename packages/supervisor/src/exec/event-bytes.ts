/**
 * ExecSandboxEvent in its final wire form. The gateway passes these bytes on without decoding them, so the head of a
 * chunk is written by hand: two length-delimited fields around the data (field numbers: proto/public/openshell.proto).
 */
const STDOUT = 0x0a;
const STDERR = 0x12;
const EXIT = 0x1a;
const DATA = 0x0a;
const EXIT_CODE = 0x08;

function varint(into: number[], value: number): void {
  let rest = value;
  while (rest > 0x7f) {
    into.push((rest & 0x7f) | 0x80);
    rest = Math.floor(rest / 128);
  }
  into.push(rest);
}

export function outputEvent(stream: "stdout" | "stderr", data: Uint8Array): Uint8Array {
  const inner: number[] = [DATA];
  varint(inner, data.length);
  const head: number[] = [stream === "stdout" ? STDOUT : STDERR];
  varint(head, inner.length + data.length);
  head.push(...inner);
  const bytes = new Uint8Array(head.length + data.length);
  bytes.set(head);
  bytes.set(data, head.length);
  return bytes;
}

/** `code` is 0…255. */
export function exitEvent(code: number): Uint8Array {
  if (code === 0) return Uint8Array.of(EXIT, 0);
  const inner: number[] = [EXIT_CODE];
  varint(inner, code);
  return Uint8Array.from([EXIT, inner.length, ...inner]);
}

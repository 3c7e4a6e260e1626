import { ProtoReader, ProtoWriter } from "./proto-wire.ts";

/** Fields of `ExecSandboxRequest` that the command line uses. */
export interface ExecStart {
  readonly workspace: string;
  readonly sandbox: string;
  readonly command: readonly string[];
  readonly workdir?: string;
  readonly environment?: Readonly<Record<string, string>>;
  readonly tty?: boolean;
  readonly cols?: number;
  readonly rows?: number;
  readonly noLoginShell?: boolean;
  /** Seconds; 0 for none. */
  readonly timeoutSeconds?: number;
}

/** `ExecSandboxEvent`; `undefined` for an event of a kind that is not known here. */
export type ExecEvent =
  | { readonly kind: "stdout" | "stderr"; readonly data: Uint8Array }
  | { readonly kind: "exit"; readonly code: number };

function startMessage(start: ExecStart): ProtoWriter {
  const message = new ProtoWriter().string(1, start.sandbox);
  for (const word of start.command) message.bytes(2, Buffer.from(word, "utf8"));
  message.string(3, start.workdir ?? "");
  for (const [key, value] of Object.entries(start.environment ?? {})) {
    message.message(4, new ProtoWriter().string(1, key).string(2, value));
  }
  message
    .bool(7, start.tty ?? false)
    .uint(8, start.cols ?? 0)
    .uint(9, start.rows ?? 0)
    .bool(10, start.noLoginShell ?? false)
    .message(12, new ProtoWriter().bytes(1, Buffer.from(start.workspace, "utf8")));
  const timeout = start.timeoutSeconds ?? 0;
  if (timeout > 0) message.message(105, new ProtoWriter().uint(1, timeout));
  return message;
}

/** `ExecSandboxInput` messages. */
export function encodeStart(start: ExecStart): Uint8Array {
  return new ProtoWriter().message(1, startMessage(start)).finish();
}

export function encodeStdin(data: Uint8Array): Uint8Array {
  return new ProtoWriter().bytes(2, data).finish();
}

export function encodeResize(cols: number, rows: number): Uint8Array {
  return new ProtoWriter().message(3, new ProtoWriter().uint(1, cols).uint(2, rows)).finish();
}

/** Throws RangeError on malformed bytes. The data is a view into `bytes`. */
export function decodeEvent(bytes: Uint8Array): ExecEvent | undefined {
  let event: ExecEvent | undefined;
  for (const { field, data } of new ProtoReader(bytes)) {
    if (!(data instanceof Uint8Array)) continue;
    if (field === 1 || field === 2) event = { kind: field === 1 ? "stdout" : "stderr", data: payload(data) };
    if (field === 3) event = { kind: "exit", code: exitCode(data) };
  }
  return event;
}

function payload(message: Uint8Array): Uint8Array {
  let found: Uint8Array = new Uint8Array();
  for (const { field, data } of new ProtoReader(message)) if (field === 1 && data instanceof Uint8Array) found = data;
  return found;
}

function exitCode(message: Uint8Array): number {
  let code = 0;
  // Negative int32 values travel as 64-bit two's complement; an exit status is never negative.
  for (const { field, data } of new ProtoReader(message)) if (field === 1 && typeof data === "number") code = data;
  return code;
}

import { PassThrough } from "node:stream";
import type { Surroundings } from "../context.ts";
import { dispatch } from "../dispatch.ts";

export interface Outcome {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

export interface CommandOptions {
  readonly env?: Readonly<Record<string, string | undefined>>;
  readonly cwd?: string;
  readonly stdin?: string | Uint8Array;
  /** Somebody sits before it: standard input is a terminal. */
  readonly interactive?: boolean;
  /** Both output streams are terminals of this width. */
  readonly columns?: number;
}

/** Runs one command line inside the test's process. */
export async function runCommandLine(argv: readonly string[], options: CommandOptions = {}): Promise<Outcome> {
  const stdout = collector(options.columns);
  const stderr = collector(options.columns);
  const stdin = new PassThrough();
  if (options.interactive === true) Object.assign(stdin, { isTTY: true });
  stdin.end(options.stdin ?? "");
  const env = { PATH: "/usr/bin:/bin", HOME: "/nonexistent", XDG_CONFIG_HOME: "/nonexistent/config", ...options.env };
  const surroundings: Surroundings = {
    env,
    cwd: options.cwd ?? "/",
    uid: 12_345,
    home: env.HOME,
    stdin: stdin as unknown as NodeJS.ReadStream,
    stdout: stdout.stream,
    stderr: stderr.stream,
  };
  const code = await dispatch(argv, surroundings);
  return { code, stdout: stdout.text(), stderr: stderr.text() };
}

function collector(columns: number | undefined) {
  const stream = new PassThrough();
  const chunks: Buffer[] = [];
  stream.on("data", (chunk: Buffer) => chunks.push(chunk));
  if (columns !== undefined) Object.assign(stream, { isTTY: true, columns, rows: 24 });
  return { stream: stream as unknown as NodeJS.WriteStream, text: () => Buffer.concat(chunks).toString("utf8") };
}

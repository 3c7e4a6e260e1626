import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import type { TestSandbox } from "./api.ts";
import { PYTHON } from "./attack.ts";

/** Exact bytes out of a sandbox: for requests that no HTTP client would send. */

/** For `openLab({ scripts })`. */
export const CLIENT_SCRIPT: Readonly<Record<string, string>> = {
  "client.py": readFileSync(resolve(import.meta.dirname, "../security/programs/client.py"), "utf8"),
};

export interface SendOptions {
  /** Where TCP goes to; default: the explicit proxy. */
  readonly to?: readonly [host: string, port: number];
  /** Tunnels through the explicit proxy first. */
  readonly connect?: string;
  readonly tls?: boolean;
  /** Server name; "none" for no such extension. Default: the host. */
  readonly sni?: string;
  readonly alpn?: string;
  /** Pauses after this text. */
  readonly split?: string;
  /** Seconds of waiting for the first byte, and for more after it. */
  readonly timeout?: number;
  readonly quiet?: number;
}

export interface Shot extends SendOptions {
  /** Latin-1. */
  readonly bytes: string;
}

const PROXY = ["127.0.0.1", 3128] as const;

/** Sends several at once; answers in Latin-1, in the same order, "error NAME\n" where nothing came. */
export async function sendAll(box: TestSandbox, shots: readonly Shot[], env = {}): Promise<readonly string[]> {
  const jobs = JSON.stringify(shots.map((shot) => ({ to: PROXY, ...shot })));
  const { stdout, stderr } = await box.exec([PYTHON, "/attack/client.py"], { stdin: jobs, env, timeoutMs: 90_000 });
  if (stderr !== "") throw new Error(stderr);
  return JSON.parse(stdout) as string[];
}

/** Sends bytes and returns what came back. */
export async function send(box: TestSandbox, bytes: string, options: SendOptions = {}): Promise<string> {
  const [answer] = await sendAll(box, [{ ...options, bytes }]);
  return answer!;
}

/** Status codes of the responses in an answer, in order. */
export function statuses(answer: string): readonly number[] {
  return [...answer.matchAll(/HTTP\/1\.1 (\d{3}) [^\r\n]*\r\n/g)].map((match) => Number(match[1]));
}

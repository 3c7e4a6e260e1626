import { createInterface } from "node:readline";
import type { ClientEvent, Listening, PeerConfig } from "../protocol.ts";

/** The frame of a peer written for Node: its configuration, orders line by line, events line by line. */

export function config(): PeerConfig {
  return JSON.parse(process.argv[2]!) as PeerConfig;
}

export function emit(event: ClientEvent | Listening): void {
  process.stdout.write(`${JSON.stringify(event)}\n`);
}

/** Calls back for each order; the peer ends with its standard input. */
export function onOrder<Op>(handle: (op: Op) => void): void {
  createInterface({ input: process.stdin })
    .on("line", (line) => handle(JSON.parse(line) as Op))
    .on("close", () => process.exit(0));
}

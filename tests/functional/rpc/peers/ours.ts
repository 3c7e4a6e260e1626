import { OurServer } from "../implementation.ts";
import { config, onOrder } from "./lines.ts";

/** Our server in a process of its own, to look at its memory: started with --expose-gc, each order is answered with what is in use. */

/** What lives after everything that can go has gone, in bytes, and connections that are open. */
export interface InUse {
  readonly heap: number;
  readonly external: number;
  readonly connections: number;
}

const server = new OurServer(config());
await server.listen();
process.stdout.write(`${JSON.stringify({ listening: server.address })}\n`);
onOrder(async () => {
  for (let n = 0; n < 3; n++) {
    (globalThis as { gc?: () => void }).gc!();
    // What was finalised may let go of more.
    await new Promise((done) => setImmediate(done));
  }
  const { heapUsed: heap, external } = process.memoryUsage();
  process.stdout.write(`${JSON.stringify({ heap, external, connections: server.connections } satisfies InUse)}\n`);
});

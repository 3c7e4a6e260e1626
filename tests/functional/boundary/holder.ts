/**
 * A host process that tests kill: attaches, confirms, starts the main process, serves the capture sockets, and says so
 * on stdout. argv: JSON of {attach options, confirm, main argv}; bytes of main's stdout are counted and reported.
 */
import { createServer } from "node:net";
import { type AttachOptions, attachLocalBoundary } from "@openshell/boundary/local/attach.ts";
import { command, testRestrictions } from "../../support/boundary.ts";

interface Order {
  readonly socketPath: string;
  readonly nonce: string;
  readonly sandboxId: string;
  readonly netnsCookie: string;
  readonly main: readonly string[] | undefined;
  readonly exec: readonly string[] | undefined;
  readonly saved: string | undefined;
}

const order = JSON.parse(process.argv[2] ?? "{}") as Order;
const options: AttachOptions = {
  socketPath: order.socketPath,
  nonce: Buffer.from(order.nonce, "hex"),
  instanceId: `holder-${process.pid}`,
  expected: { sandboxId: order.sandboxId, generation: 1n, netnsCookie: BigInt(order.netnsCookie) },
};
const boundary = await attachLocalBoundary(options);
if (boundary.state === "fresh") await boundary.confirm(testRestrictions());
for (const { fd } of boundary.capture.tcp) {
  const server = createServer((socket) => {
    socket.on("error", () => {});
    socket.once("data", () => socket.end(`served by ${process.pid}\n`));
  });
  await new Promise<void>((resolve) => server.listen({ fd, backlog: 4096 }, resolve));
}
await boundary.resume();
if (order.saved !== undefined) await boundary.saveState(Buffer.from(order.saved));
if (order.main !== undefined && boundary.main === undefined) await boundary.startMain(command(order.main));
if (order.exec !== undefined) await boundary.spawn(command(order.exec));
boundary.main?.stdout.on("data", (data: Buffer) => process.stdout.write(data));
process.stderr.write(`holding ${boundary.state}\n`);

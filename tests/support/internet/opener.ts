import { spawnSync } from "node:child_process";
import dgram from "node:dgram";
import { writeFileSync } from "node:fs";
import net from "node:net";

/**
 * Lives in a test host's network namespace and keeps it alive: configures its link, and opens sockets there that are
 * handed to the test process, where the host's servers run. Ends when the test process does.
 */

/** From the test process. */
export type OpenerRequest =
  | {
      readonly id: number;
      readonly op: "ip";
      readonly batch: string;
      readonly sysctls: Readonly<Record<string, string>>;
    }
  | { readonly id: number; readonly op: "tcp"; readonly port: number }
  | { readonly id: number; readonly op: "udp"; readonly port: number };

/** To the test process; the handle travels beside it. */
export interface OpenerReply {
  readonly id: number;
  readonly error?: string;
}

const BACKLOG = 4096;

function reply(message: OpenerReply, handle?: net.Server | dgram.Socket): void {
  process.send?.(message, handle, {}, () => handle?.close());
}

function configure(batch: string, sysctls: Readonly<Record<string, string>>): string | undefined {
  for (const [name, value] of Object.entries(sysctls)) writeFileSync(`/proc/sys/${name.replaceAll(".", "/")}`, value);
  const result = spawnSync("ip", ["-batch", "-"], { input: batch, encoding: "utf8" });
  return result.status === 0 ? undefined : `ip: ${result.error?.message ?? result.stderr}`;
}

function handle(request: OpenerRequest): void {
  const { id } = request;
  if (request.op === "ip") {
    const error = configure(request.batch, request.sysctls);
    reply(error === undefined ? { id } : { id, error });
    return;
  }
  if (request.op === "tcp") {
    const server = net.createServer();
    server.on("error", (error) => reply({ id, error: error.message }));
    // The unspecified IPv6 address is both families.
    server.listen({ host: "::", port: request.port, backlog: BACKLOG }, () => reply({ id }, server));
    return;
  }
  const socket = dgram.createSocket("udp6");
  socket.on("error", (error) => reply({ id, error: error.message }));
  socket.bind(request.port, "::", () => reply({ id }, socket));
}

process.on("message", (request: OpenerRequest) => {
  try {
    handle(request);
  } catch (error) {
    reply({ id: request.id, error: error instanceof Error ? error.message : String(error) });
  }
});
process.on("disconnect", () => process.exit(0));
// Terminal signals are the run's business; the channel's end is what ends this process.
process.on("SIGINT", () => {});
reply({ id: 0 });

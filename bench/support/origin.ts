import { once } from "node:events";
import { join } from "node:path";
import type { TestSandbox } from "../../tests/support/api.ts";
import type { TestHost } from "../../tests/support/internet/index.ts";
import type { Job, Measured } from "../workers/http-client.ts";
import { cpu } from "./processes.ts";
import type { Stage } from "./stage.ts";

/** Inspected. */
export const HOST = "api.example-allowed.com";
/** The same server under a name that is passed on without inspection. */
export const TUNNEL_HOST = "tunnel.example-allowed.com";
/** In no policy. */
export const DENIED_HOST = "other.example-denied.net";
const CLIENT_TIMEOUT_MS = 60_000;
/** Folders of the client inside. */
const INSIDE = { node: "/opt/bench-node", client: "/opt/bench-client" };

/** With what the host spent on each operation, milliseconds of CPU: hardly depends on what else the machine does. */
export interface Passed extends Measured {
  readonly hostCpuEachMs: number;
}

/** An inspected endpoint with `rules` rules, of which the last allows GET, and a tunnel. */
export function benchPolicy(rules: number, path = "/**"): string {
  const further = Array.from(
    { length: rules - 1 },
    (_, i) => `          - allow: {method: GET, path: "/v${i}/items/*/detail"}\n`,
  ).join("");
  return `
version: 1
network_policies:
  bench:
    endpoints:
      - host: ${HOST}
        port: 443
        protocol: rest
        enforcement: enforce
        rules:
${further}          - allow: {method: GET, path: "${path}"}
      - {host: ${HOST}, port: 80, protocol: rest, enforcement: enforce, access: read-only}
      - {host: ${TUNNEL_HOST}, port: 443, tls: skip}
    binaries: [{path: "${INSIDE.node}/bin/node"}]
`;
}

/** An origin in a process of its own, in a host's namespace, and clients inside and outside a sandbox. */
export class Origin {
  readonly #stage: Stage;
  readonly #host: TestHost;

  private constructor(stage: Stage, host: TestHost) {
    this.#stage = stage;
    this.#host = host;
  }

  /** The host and its server live as long as the test internet. */
  static async start(stage: Stage): Promise<Origin> {
    const host = await stage.net.host(HOST, { names: [TUNNEL_HOST], services: [] });
    const certificate = await stage.net.authority.issue([HOST, TUNNEL_HOST]);
    const server = host.commands.spawn([process.execPath, join(stage.build.folder, "bench", "origin.ts")], {
      privileges: "harness",
      stdio: ["pipe", "pipe", "inherit"],
    });
    server.stdin!.end(JSON.stringify(certificate));
    const gone = once(server, "exit").then(([code]) => Promise.reject(new Error(`origin ended with status ${code}`)));
    await Promise.race([once(server.stdout!, "data"), gone]);
    gone.catch(() => {});
    stage.cleanup(() => server.kill("SIGKILL"));
    return new Origin(stage, host);
  }

  /** Volumes that a sandbox with clients needs. */
  get volumes(): readonly string[] {
    const nodeFolder = join(this.#stage.build.node, "../..");
    return [`${nodeFolder}:${INSIDE.node}:ro`, `${join(this.#stage.build.folder, "bench")}:${INSIDE.client}:ro`];
  }

  job(wanted: Partial<Job> & Pick<Job, "kind">): Job {
    return {
      secure: true,
      host: HOST,
      port: wanted.secure === false ? 80 : 443,
      clients: 1,
      seconds: this.#stage.seconds,
      path: "/one",
      method: "GET",
      status: 200,
      caFile: "",
      ...wanted,
    };
  }

  /** The command line of a client inside. */
  inside(job: Job): readonly string[] {
    return [`${INSIDE.node}/bin/node`, `${INSIDE.client}/http-client.ts`, JSON.stringify(job)];
  }

  /** From a sandbox, through its egress. */
  async through(sandbox: TestSandbox, wanted: Partial<Job> & Pick<Job, "kind">): Promise<Passed> {
    const argv = this.inside(this.job(wanted));
    const before = cpu().host;
    const result = await sandbox.exec(argv, { timeoutMs: CLIENT_TIMEOUT_MS });
    if (result.exitCode !== 0) throw new Error(`client inside: exit ${result.exitCode}\n${result.stderr}`);
    const measured = JSON.parse(result.stdout) as Measured;
    return { ...measured, hostCpuEachMs: (cpu().host - before) / measured.count };
  }

  /** From the gateway's place in the network, without a sandbox. */
  async direct(wanted: Partial<Job> & Pick<Job, "kind">): Promise<Measured> {
    const job = this.job({ address: this.#host.ipv4, ...wanted, caFile: this.#stage.net.caFile });
    const client = join(this.#stage.build.folder, "bench", "http-client.ts");
    const result = await this.#stage.net.run([this.#stage.build.node, client, JSON.stringify(job)], {
      timeoutMs: CLIENT_TIMEOUT_MS,
    });
    if (result.exitCode !== 0) throw new Error(`client outside: exit ${result.exitCode}\n${result.stderr}`);
    return JSON.parse(result.stdout) as Measured;
  }
}

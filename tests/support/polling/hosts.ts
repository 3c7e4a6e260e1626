import { copyFileSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { pathToFileURL } from "node:url";
import { createClient } from "@connectrpc/connect";
import { OpenShell } from "@openshell/api";
import {
  type HostDownlink,
  type HostUplink,
  SupervisorGateway,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { buildFolder } from "../../functional/gateway/gateway-process.ts";
import { HostLink } from "../host-link.ts";
import { type Attachment, type Clients, PollingSession } from "./session.ts";

/** Looks by what they found. */
export interface Found {
  unchanged: number;
  changed: number;
}

/** What the looks of each sandbox found. */
class Looks {
  readonly #found = new Map<string, Found>();

  of(sandboxId: string): Found {
    const found = this.#found.get(sandboxId) ?? { unchanged: 0, changed: 0 };
    this.#found.set(sandboxId, found);
    return found;
  }
}

/**
 * Makes the supervisor hosts of one gateway speak an older revision of the protocol: everything in a sandbox is the
 * product's (boundary, workload, egress, credentials), its session says revision 0 or 1, and configuration comes by
 * asking. The hosts dial a socket here instead of their gateway's; streams are passed on, except for what an older
 * supervisor does otherwise (session.ts).
 */
export class PollingHosts implements AsyncDisposable {
  /** Variables of the command that starts the gateway. */
  readonly env: Readonly<Record<string, string>>;
  readonly #folder: string;
  readonly #link: HostLink<Clients>;
  readonly #attachments = new Map<string, Attachment>();
  readonly #options: { readonly revision: number; readonly intervalMs: number };
  #hostSocket = "";
  readonly looks = new Looks();
  /** What should not have happened. */
  readonly problems: string[] = [];

  private constructor(options: { readonly revision: number; readonly intervalMs: number }) {
    this.#options = options;
    // Not TMPDIR: paths of sockets are short.
    this.#folder = mkdtempSync(join("/tmp", "op-"));
    this.env = {
      OPENSHELL_DIST: relinkedBuild(buildFolder(), this.#folder),
      OPENSHELL_TEST_HOST_SOCKET: join(this.#folder, "host.sock"),
    };
    this.#link = new HostLink({
      target: () => this.#hostSocket,
      open: (transport): Clients => ({
        supervisor: createClient(SupervisorGateway, transport),
        api: createClient(OpenShell, transport),
      }),
      service: (called) => ({
        connectHost: (up, context) => {
          const { connection, options: call } = called(context);
          return this.#learn(connection.supervisor.connectHost(this.#older(up), call));
        },
        connectSupervisor: (up, context) => {
          const { connection: clients, options: call } = called(context);
          const attachments = this.#attachments;
          const { looks, problems } = this;
          const session = new PollingSession({ ...this.#options, clients, attachments, looks, problems });
          return session.run(up, call);
        },
        relay: (up, context) => {
          const { connection, options: call } = called(context);
          return connection.supervisor.relay(up, call);
        },
      }),
    });
  }

  /** @param options `intervalMs`: between two looks. */
  static async start(options: { readonly revision: number; readonly intervalMs: number }): Promise<PollingHosts> {
    const hosts = new PollingHosts(options);
    await hosts.#link.listen(hosts.env["OPENSHELL_TEST_HOST_SOCKET"]!);
    return hosts;
  }

  /** Names the gateway that they belong to. */
  serve(hostSocket: string): void {
    this.#hostSocket = hostSocket;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#link[Symbol.asyncDispose]();
    rmSync(this.#folder, { recursive: true, force: true });
  }

  async *#older(messages: AsyncIterable<HostUplink>): AsyncGenerator<HostUplink> {
    for await (const message of messages) {
      if (message.message.case === "hello") message.message.value.protocolRevision = this.#options.revision;
      yield message;
    }
  }

  /** Keeps what a sandbox is called and the token that speaks for it. */
  async *#learn(messages: AsyncIterable<HostDownlink>): AsyncGenerator<HostDownlink> {
    for await (const message of messages) {
      const { message: content } = message;
      if (content.case === "attach") {
        const { sandboxId, sandboxName, workspace, token } = content.value;
        this.#attachments.set(sandboxId, { sandboxName, workspace, token: token?.token ?? "" });
      } else if (content.case === "token") {
        const { sandboxId, token } = content.value;
        const known = this.#attachments.get(sandboxId);
        if (known !== undefined) this.#attachments.set(sandboxId, { ...known, token });
      }
      yield message;
    }
  }
}

/** The build, in a folder below `parent`, with a host that dials `$OPENSHELL_TEST_HOST_SOCKET`; everything else is linked. */
function relinkedBuild(build: string, parent: string): string {
  const folder = join(parent, basename(build));
  mkdirSync(folder, { mode: 0o755 });
  for (const name of readdirSync(build)) if (name !== "host.mjs") symlinkSync(join(build, name), join(folder, name));
  copyFileSync(join(import.meta.dirname, "../../faults/programs/link.mjs"), join(folder, "link.mjs"));
  const real = pathToFileURL(join(build, "host.mjs")).href;
  const lines = [`import { relinkGateway } from "./link.mjs";`, "relinkGateway();", `await import("${real}");`];
  writeFileSync(join(folder, "host.mjs"), `${lines.join("\n")}\n`);
  return folder;
}

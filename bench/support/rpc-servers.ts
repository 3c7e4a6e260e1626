import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { LIBRARIES, type Library } from "./rpc-service.ts";

/** A process for each library. */
export class RpcServers implements AsyncDisposable {
  readonly #children = new Map<Library, ChildProcess>();
  readonly #folder: string;

  private constructor(folder: string) {
    this.#folder = folder;
  }

  static async start(folder: string): Promise<RpcServers> {
    const servers = new RpcServers(folder);
    const file = join(import.meta.dirname, "../workers/rpc-server.ts");
    for (const library of LIBRARIES) {
      const argv = [file, library, servers.socket(library)];
      const child = spawn(process.execPath, argv, { stdio: ["ignore", "pipe", "inherit"] });
      servers.#children.set(library, child);
      await once(child.stdout!, "data");
    }
    return servers;
  }

  socket(library: Library): string {
    return join(this.#folder, `${library}.sock`);
  }

  pid(library: Library): number {
    return this.#children.get(library)!.pid!;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const child of this.#children.values()) {
      child.kill();
      await once(child, "exit");
    }
  }
}

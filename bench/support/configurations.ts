import { OpenShell } from "@openshell/api";
import { SCOPE } from "../../tests/support/api.ts";
import type { GrpcClient } from "./grpc.ts";

const METHOD = OpenShell.method.watchSandbox;

/** Waits for a sandbox's word that a configuration is in force, so that nobody has to ask again and again. */
export class Configurations {
  #applied = Promise.withResolvers<void>();

  /** Watches until the client is disposed of. */
  constructor(client: GrpcClient, sandbox: string) {
    const watch = client.stream(METHOD, { workspaceScope: SCOPE, sandbox, followEvents: true }, ({ payload }) => {
      if (payload.case === "event" && payload.value.reason === "ConfigurationApplied") this.#applied.resolve();
    });
    watch.catch((error: unknown) => this.#applied.reject(error));
    this.#applied.promise.catch(() => {});
  }

  /** The next one. To be asked for before it is changed. */
  next(): Promise<void> {
    this.#applied = Promise.withResolvers();
    return this.#applied.promise;
  }
}

import { EXTRA_PROVIDER, ownProvider, SHARED_PROVIDER } from "./schedule.ts";

/** What a run's sandboxes and providers must be, as far as answers have told. */

export interface ModelSandbox {
  readonly name: string;
  readonly client: number;
  /** Of the answer to its creation. */
  id: string;
  wish: "running" | "stopped" | "deleted";
  /** Variant in force. */
  policy: number;
  /** Revisions that were stored: one for its creation and one for each change. */
  revisions: number;
  /** `EXTRA_PROVIDER` is attached. */
  extra: boolean;
  /** Something that was killed on purpose ends this run of it: it may be in ERROR from now until it is started again. */
  broken: "agent" | "init" | undefined;
  /** Executions by their mark: `once` was answered with an exit, `maybe` was not. */
  readonly executions: Map<string, "once" | "maybe">;
}

export class Model {
  readonly sandboxes = new Map<string, ModelSandbox>();
  /** Serial number of the credential that each provider has. */
  readonly serials = new Map<string, number>();

  constructor(clients: number) {
    this.serials.set(SHARED_PROVIDER, 0);
    this.serials.set(EXTRA_PROVIDER, 0);
    for (let client = 0; client < clients; client++) this.serials.set(ownProvider(client), 0);
  }

  sandbox(name: string): ModelSandbox {
    const found = this.sandboxes.get(name);
    if (found === undefined) throw new Error(`${name} was never created`);
    return found;
  }

  /** Those that exist. */
  existing(): readonly ModelSandbox[] {
    return [...this.sandboxes.values()].filter(({ wish }) => wish !== "deleted");
  }
}

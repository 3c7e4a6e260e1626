import { PassThrough } from "node:stream";
import type { Boundary, BoundaryEnd, BoundaryState, IsolationLayer, SandboxProcess } from "@openshell/boundary";

const NOT_SIMULATED = "nothing runs in a simulated sandbox";

/** A boundary without a sandbox behind it: its main process is started, does nothing and ends with it. */
export class SimulatedBoundary implements Boundary {
  readonly sandboxId: string;
  readonly generation: bigint;
  readonly capture = { mode: "nft" as const, tcp: [], dnsUdp: -1, dnsTcp: -1 };
  readonly isolation: readonly IsolationLayer[] = [];
  readonly main = undefined;
  state: BoundaryState = "fresh";
  readonly #ended = Promise.withResolvers<BoundaryEnd>();

  constructor(sandboxId: string, generation: bigint) {
    this.sandboxId = sandboxId;
    this.generation = generation;
  }

  get ended(): Promise<BoundaryEnd> {
    return this.#ended.promise;
  }

  async confirm(): Promise<readonly IsolationLayer[]> {
    this.state = "confirmed";
    return [];
  }

  async startMain(): Promise<SandboxProcess> {
    this.state = "main_started";
    return {
      pid: 1,
      stdin: new PassThrough(),
      stdout: new PassThrough(),
      stderr: new PassThrough(),
      exit: this.#ended.promise.then(() => ({ kind: "signaled" as const, signal: 9 })),
      signal: async () => {},
      resize: async () => {},
      closeStdin: async () => {},
      acknowledgeExit: async () => {},
    };
  }

  async spawn(): Promise<SandboxProcess> {
    throw new Error(NOT_SIMULATED);
  }

  /** Every attempt of the self-test is refused. */
  async probe(canaries: readonly string[]): Promise<readonly bigint[]> {
    return canaries.map(() => -1n);
  }

  async identify(): Promise<never[]> {
    return [];
  }

  async saveState(): Promise<void> {}

  async loadState(): Promise<Uint8Array> {
    return new Uint8Array();
  }

  async resume(): Promise<void> {}

  async freeze(): Promise<void> {}

  async thaw(): Promise<void> {}

  async terminate(): Promise<void> {
    this.#ended.resolve({ kind: "terminated", reason: "terminated" });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#ended.resolve({ kind: "detached", reason: "detached" });
  }
}

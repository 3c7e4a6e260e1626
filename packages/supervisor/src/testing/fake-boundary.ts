import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { constants } from "node:os";
import type {
  Boundary,
  BoundaryEnd,
  BoundaryState,
  IsolationLayer,
  Restrictions,
  SandboxProcess,
  SpawnSpec,
} from "@openshell/boundary";

/**
 * A boundary without a sandbox, for tests of what stands above it: processes are plain children, restrictions are only
 * remembered. Pipes only.
 */
export class FakeBoundary implements Boundary {
  readonly sandboxId = "sandbox-1";
  readonly generation = 1n;
  readonly isolation: readonly IsolationLayer[] = [{ name: "fake", enforced: false, detail: "test double" }];
  readonly capture = { mode: "sk_lookup" as const, tcp: [], dnsUdp: -1, dnsTcp: -1 };
  state: BoundaryState = "fresh";
  main: SandboxProcess | undefined;
  confirmed: Restrictions | undefined;
  resumed = 0;
  readonly #ended = Promise.withResolvers<BoundaryEnd>();
  readonly #children = new Set<ChildProcess>();

  get ended(): Promise<BoundaryEnd> {
    return this.#ended.promise;
  }
  async confirm(restrictions: Restrictions): Promise<readonly IsolationLayer[]> {
    if (this.confirmed !== undefined) throw new Error("confirmed twice");
    this.confirmed = restrictions;
    this.state = "confirmed";
    return this.confirmedLayers;
  }
  async startMain(spec: SpawnSpec): Promise<SandboxProcess> {
    if (this.confirmed === undefined) throw new Error("main started before confirm");
    this.state = "main_started";
    this.main = await this.spawn(spec);
    return this.main;
  }
  async spawn(spec: SpawnSpec): Promise<SandboxProcess> {
    const child = spawn(spec.argv[0] as string, spec.argv.slice(1), {
      env: spec.env,
      cwd: spec.cwd,
      stdio: ["pipe", "pipe", "pipe"],
      detached: true,
    });
    this.#children.add(child);
    const exited = once(child, "exit") as Promise<[number | null, NodeJS.Signals | null]>;
    await once(child, "spawn");
    return {
      pid: child.pid as number,
      stdin: child.stdin,
      stdout: child.stdout,
      stderr: child.stderr,
      exit: exited.then(([code, signal]) =>
        code === null
          ? { kind: "signaled", signal: constants.signals[signal as NodeJS.Signals] }
          : { kind: "exited", code },
      ),
      signal: async (number, target) => {
        try {
          process.kill(target === "group" ? -(child.pid as number) : (child.pid as number), number);
        } catch {}
      },
      resize: async () => {},
      closeStdin: async () => void child.stdin.end(),
      acknowledgeExit: async () => {
        this.state = "main_exited";
      },
    };
  }
  confirmedLayers: readonly IsolationLayer[] = [{ name: "landlock", enforced: true, detail: "fake" }];
  /** What it answers to canaries; by default nothing gets through. */
  answers: (canaries: readonly string[]) => readonly bigint[] = (canaries) => canaries.map(() => -1n);
  async probe(canaries: readonly string[]): Promise<readonly bigint[]> {
    if (this.confirmed === undefined || this.state !== "confirmed") throw new Error("probed outside the start");
    this.probed = canaries;
    return this.answers(canaries);
  }
  probed: readonly string[] | undefined;
  async identify(): Promise<never[]> {
    return [];
  }
  async saveState(): Promise<void> {}
  async loadState(): Promise<Uint8Array> {
    return new Uint8Array();
  }
  async freeze(): Promise<void> {}
  async thaw(): Promise<void> {}
  async resume(): Promise<void> {
    this.resumed += 1;
  }
  async terminate(): Promise<void> {
    for (const child of this.#children) child.kill("SIGKILL");
    this.#ended.resolve({ kind: "terminated", reason: "terminated" });
  }
  async [Symbol.asyncDispose](): Promise<void> {
    await this.terminate();
  }
}

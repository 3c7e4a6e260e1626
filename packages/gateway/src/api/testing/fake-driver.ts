import { BoundedQueue } from "@openshell/base/queue.ts";
import type {
  ComputeDriver,
  DeleteResult,
  DriverCapabilities,
  DriverEvent,
  DriverSandbox,
  PlantedFiles,
  SandboxIntent,
  StartedSandbox,
} from "@openshell/drivers/driver.ts";

export const BOOT = "boot-1";

/** A driver whose sandboxes are entries of a map; it outlives the gateways of a test, as init does. */
export class FakeDriver implements ComputeDriver {
  readonly name = "local";
  readonly capabilities: DriverCapabilities = {
    driverName: "fake",
    driverVersion: "0",
    cpuLimit: false,
    memoryLimit: false,
    gpu: false,
    captureMode: "nft",
    identityMode: "root",
    archiveBytes: 1 << 20,
  };
  readonly sandboxes = new Map<string, DriverSandbox>();
  /** Ids that were set aside. */
  readonly lost: string[] = [];
  /** `create`, `start`, `stop`, `delete` with the sandbox's id, in order. */
  readonly calls: string[] = [];
  /** How often each generation's init was started: `id/generation`. */
  readonly launches = new Map<string, number>();
  /** Called before each operation; may throw. */
  before: (operation: string, sandboxId: string) => Promise<void> | void = () => {};
  /** Called after each operation has taken effect, before it is reported; may throw. */
  after: (operation: string, sandboxId: string) => Promise<void> | void = () => {};
  onEnd: (sandboxId: string) => void = () => {};
  #bootId = BOOT;
  #events = new BoundedQueue<DriverEvent>(100);

  async validate(): Promise<void> {}

  create(intent: SandboxIntent): Promise<StartedSandbox> {
    return this.#launch("create", intent);
  }

  start(intent: SandboxIntent): Promise<StartedSandbox> {
    return this.#launch("start", intent);
  }

  async #launch(operation: string, intent: SandboxIntent): Promise<StartedSandbox> {
    const { sandboxId, generation, name, workspace } = intent;
    await this.#step(operation, sandboxId, () => {
      if (intent.nonce.length !== 32) throw new Error("no nonce");
      const current = this.sandboxes.get(sandboxId);
      if (current?.running !== undefined && current.generation === generation) return;
      if (current?.running !== undefined) throw new Error("another generation runs");
      const key = `${sandboxId}/${generation}`;
      this.launches.set(key, (this.launches.get(key) ?? 0) + 1);
      const running: StartedSandbox = {
        sandboxId,
        generation,
        record: { bootId: this.#bootId, pid: 1, startTime: 1n },
        boundary: { kind: "local", socketPath: `/run/${sandboxId}`, netnsCookie: 1n },
        layout: {
          home: "/home/agent",
          workingDirectory: "/home/agent",
          uid: 1000,
          gid: 1000,
          readOnlyPaths: [],
          readWritePaths: [],
          environment: {},
          processLimit: 2_048,
        },
        isolation: [],
      };
      this.sandboxes.set(sandboxId, { sandboxId, generation, name, workspace, running });
    });
    return this.sandboxes.get(sandboxId)!.running!;
  }

  async stop(sandboxId: string): Promise<void> {
    await this.#step("stop", sandboxId, () => this.end(sandboxId));
  }

  async delete(sandboxId: string): Promise<DeleteResult> {
    let existed = false;
    await this.#step("delete", sandboxId, () => {
      this.end(sandboxId);
      existed = this.sandboxes.delete(sandboxId);
    });
    return { existed };
  }

  async setAside(sandboxId: string): Promise<string | undefined> {
    const { existed } = await this.delete(sandboxId);
    if (existed) this.lost.push(sandboxId);
    return existed ? `/state/sandboxes/.lost-1-${sandboxId}` : undefined;
  }

  async inspect(sandboxId: string): Promise<DriverSandbox | undefined> {
    return this.sandboxes.get(sandboxId);
  }

  async list(): Promise<readonly DriverSandbox[]> {
    return [...this.sandboxes.values()];
  }

  /** What `plantedFiles` answers. */
  planted: PlantedFiles = { files: [], more: 0, complete: true };

  async plantedFiles(): Promise<PlantedFiles> {
    return this.planted;
  }

  watch(signal: AbortSignal): AsyncIterable<DriverEvent> {
    const queue = new BoundedQueue<DriverEvent>(100);
    this.#events = queue;
    signal.addEventListener("abort", () => queue.close(), { once: true });
    return queue;
  }

  /** What ran is gone, and nobody was told. */
  reboot(bootId: string): void {
    this.#bootId = bootId;
    for (const [id, sandbox] of this.sandboxes) this.sandboxes.set(id, { ...sandbox, running: undefined });
  }

  /** Init ends, for whatever reason. */
  end(sandboxId: string): void {
    const current = this.sandboxes.get(sandboxId);
    if (current?.running === undefined) return;
    const { generation, record } = current.running;
    this.sandboxes.set(sandboxId, { ...current, running: undefined });
    this.onEnd(sandboxId);
    this.#events.offer({ kind: "ended", sandboxId, generation, record });
  }

  /** Its files take more than the driver allows. */
  exceedDisk(sandboxId: string, usedBytes: number, limitBytes: number): void {
    const { generation } = this.sandboxes.get(sandboxId)!;
    this.#events.offer({ kind: "disk_limit", sandboxId, generation, usedBytes, limitBytes });
  }

  /** It redirected a repository in a volume. */
  redirect(sandboxId: string, path: string): void {
    const { generation } = this.sandboxes.get(sandboxId)!;
    this.#events.offer({ kind: "volume_redirect", sandboxId, generation, path });
  }

  async #step(operation: string, sandboxId: string, effect: () => void): Promise<void> {
    this.calls.push(`${operation} ${sandboxId}`);
    await this.before(operation, sandboxId);
    effect();
    await this.after(operation, sandboxId);
  }

  async [Symbol.asyncDispose](): Promise<void> {}
}

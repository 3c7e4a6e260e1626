import { currentBootId } from "@openshell/base";
import { BoundedQueue } from "@openshell/base/queue.ts";
import type {
  ComputeDriver,
  DeleteResult,
  DriverCapabilities,
  DriverEvent,
  DriverSandbox,
  OnProgress,
  PlantedFiles,
  SandboxIntent,
  StartedSandbox,
} from "@openshell/drivers/driver.ts";
import { SIMULATED } from "./names.ts";

/** Ends of simulated sandboxes that nobody has read yet. */
const MAX_EVENTS = 10_000;

/**
 * The local driver, and sandboxes that are nothing but an entry of a map: no folder, no process. What happens above the
 * driver is the same for both.
 */
export class SimulatingDriver implements ComputeDriver {
  readonly name: string;
  readonly capabilities: DriverCapabilities;
  readonly #real: ComputeDriver;
  readonly #simulated = new Map<string, DriverSandbox>();
  readonly #bootId = currentBootId();
  #events = new BoundedQueue<DriverEvent>(MAX_EVENTS);

  constructor(real: ComputeDriver) {
    this.#real = real;
    this.name = real.name;
    this.capabilities = real.capabilities;
  }

  async validate(intent: SandboxIntent): Promise<void> {
    if (!intent.name.startsWith(SIMULATED)) await this.#real.validate(intent);
  }

  async create(intent: SandboxIntent, onProgress?: OnProgress): Promise<StartedSandbox> {
    return intent.name.startsWith(SIMULATED) ? this.#launch(intent) : await this.#real.create(intent, onProgress);
  }

  async start(intent: SandboxIntent): Promise<StartedSandbox> {
    return intent.name.startsWith(SIMULATED) ? this.#launch(intent) : await this.#real.start(intent);
  }

  async stop(sandboxId: string): Promise<void> {
    if (this.#simulated.has(sandboxId)) this.#end(sandboxId);
    else await this.#real.stop(sandboxId);
  }

  async setAside(sandboxId: string): Promise<undefined> {
    await this.delete(sandboxId);
  }

  async delete(sandboxId: string): Promise<DeleteResult> {
    if (!this.#simulated.has(sandboxId)) return await this.#real.delete(sandboxId);
    this.#end(sandboxId);
    return { existed: this.#simulated.delete(sandboxId) };
  }

  async inspect(sandboxId: string): Promise<DriverSandbox | undefined> {
    return this.#simulated.get(sandboxId) ?? (await this.#real.inspect(sandboxId));
  }

  async list(): Promise<readonly DriverSandbox[]> {
    return [...(await this.#real.list()), ...this.#simulated.values()];
  }

  async plantedFiles(sandboxId: string): Promise<PlantedFiles> {
    if (this.#simulated.has(sandboxId)) return { files: [], more: 0, complete: true };
    return await this.#real.plantedFiles(sandboxId);
  }

  async *watch(signal: AbortSignal): AsyncGenerator<DriverEvent, void, void> {
    const events = new BoundedQueue<DriverEvent>(MAX_EVENTS);
    this.#events = events;
    signal.addEventListener("abort", () => events.close(), { once: true });
    const forward = async (): Promise<void> => {
      for await (const event of this.#real.watch(signal)) events.offer(event);
    };
    forward().then(
      () => events.close(),
      (error: unknown) => events.close(error),
    );
    yield* events;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#real[Symbol.asyncDispose]();
  }

  #launch({ sandboxId, generation, name, workspace }: SandboxIntent): StartedSandbox {
    const running: StartedSandbox = {
      sandboxId,
      generation,
      record: { bootId: this.#bootId, pid: 1, startTime: 1n },
      boundary: { kind: "local", socketPath: `/nowhere/${sandboxId}`, netnsCookie: 1n },
      layout: {
        home: "/home/agent",
        workingDirectory: "/home/agent",
        uid: 1000,
        gid: 1000,
        readOnlyPaths: [],
        readWritePaths: [],
        environment: { PATH: "/usr/bin:/bin", SHELL: "/bin/sh" },
        processLimit: 0,
      },
      isolation: [],
    };
    this.#simulated.set(sandboxId, { sandboxId, generation, name, workspace, running });
    return running;
  }

  #end(sandboxId: string): void {
    const sandbox = this.#simulated.get(sandboxId);
    if (sandbox?.running === undefined) return;
    const { generation, record } = sandbox.running;
    this.#simulated.set(sandboxId, { ...sandbox, running: undefined });
    this.#events.offer({ kind: "ended", sandboxId, generation, record });
  }
}

import type { HostLauncher, HostListener } from "@openshell/gateway/hosts/types.ts";
import type { HostRecord } from "@openshell/gateway/store/types.ts";

/** Two launchers as one: simulated sandboxes get hosts of the second. Each ignores the hosts of the other. */
export class SimulatingLauncher implements HostLauncher {
  readonly #real: HostLauncher;
  readonly #simulated: HostLauncher;
  readonly #isSimulated: (sandboxId: string) => Promise<boolean>;

  constructor(real: HostLauncher, simulated: HostLauncher, isSimulated: (sandboxId: string) => Promise<boolean>) {
    this.#real = real;
    this.#simulated = simulated;
    this.#isSimulated = isSimulated;
  }

  adopt(): Promise<readonly HostRecord[]> {
    return this.#real.adopt();
  }

  async ensure(workspace: string, sandboxId: string): Promise<HostRecord> {
    const launcher = (await this.#isSimulated(sandboxId)) ? this.#simulated : this.#real;
    return await launcher.ensure(workspace, sandboxId);
  }

  async authenticate(secretHex: string): Promise<HostRecord | undefined> {
    return (await this.#real.authenticate(secretHex)) ?? (await this.#simulated.authenticate(secretHex));
  }

  async connected(hostId: string, facts: { readonly pid: number; readonly build: string }): Promise<void> {
    await this.#real.connected(hostId, facts);
    await this.#simulated.connected(hostId, facts);
  }

  disconnected(hostId: string): void {
    this.#real.disconnected(hostId);
    this.#simulated.disconnected(hostId);
  }

  holds(hostId: string, sandboxes: number): void {
    this.#real.holds(hostId, sandboxes);
    this.#simulated.holds(hostId, sandboxes);
  }

  async stop(hostId: string): Promise<void> {
    await this.#real.stop(hostId);
    await this.#simulated.stop(hostId);
  }

  current(): readonly HostRecord[] {
    return [...this.#real.current(), ...this.#simulated.current()];
  }

  subscribe(listener: HostListener): () => void {
    const ends = [this.#real.subscribe(listener), this.#simulated.subscribe(listener)];
    return () => {
      for (const end of ends) end();
    };
  }

  /** The gateway disposes of its own launcher; of the second whoever made it. */
  async [Symbol.asyncDispose](): Promise<void> {}
}

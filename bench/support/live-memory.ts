import { existsSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { runProcesses } from "../../tests/support/leaks.ts";
import { argumentsOf, partProcesses, type Role } from "./processes.ts";
import type { Build } from "./stage.ts";

export type Part = Exclude<Role, "init">;
export const PARTS = ["gateway", "host"] as const satisfies readonly Part[];

const ANSWER_WITHIN_MS = 10_000;

/** Added to the programs of the copy that is measured: on SIGUSR2, garbage is collected and what is left is written down. */
function hook(folder: string): string {
  return `
import benchFs from "node:fs";
import benchV8 from "node:v8";
import benchVm from "node:vm";
benchV8.setFlagsFromString("--expose-gc");
const benchCollect = benchVm.runInNewContext("gc");
benchV8.setFlagsFromString("--no-expose-gc");
process.on("SIGUSR2", () => {
  benchCollect();
  setTimeout(() => {
    benchCollect();
    const { heapUsed, external } = process.memoryUsage();
    const file = ${JSON.stringify(folder)} + "/live-" + process.pid;
    benchFs.writeFileSync(file + ".new", String(heapUsed + external));
    benchFs.renameSync(file + ".new", file);
  }, 100);
});
`;
}

/**
 * Memory that gateway and host really hold: heap and buffers after a collection. From outside one sees pages, of which V8
 * keeps up to 64 MB for its next burst, or not.
 */
export class LiveMemory implements Disposable {
  readonly #folder: string;
  readonly #programs: readonly { readonly path: string; readonly text: string }[];

  /** Programs that start from now on can be asked; until disposal. `further`: files of programs beside the product's parts. */
  constructor(build: Build, further: readonly string[] = []) {
    this.#folder = build.folder;
    this.#programs = [...PARTS.map((part) => `${part}.mjs`), ...further].map((name) => {
      const path = join(build.output, name);
      return { path, text: readFileSync(path, "utf8") };
    });
    for (const { path, text } of this.#programs) writeFileSync(path, hook(this.#folder) + text);
  }

  /** MB, by part. */
  async read(): Promise<Readonly<Record<Part, number>>> {
    const found = { gateway: 0, host: 0 };
    for (const { pid, role } of partProcesses()) if (role !== "init") found[role] += await this.#ask(pid);
    return found;
  }

  /** Collects the garbage of every process of this program: its pause is not to fall into what is measured next. */
  async collect(program: string): Promise<void> {
    for (const { pid } of runProcesses())
      if (argumentsOf(pid).some((word) => basename(word) === program)) await this.#ask(pid);
  }

  async #ask(pid: number): Promise<number> {
    const file = join(this.#folder, `live-${pid}`);
    process.kill(pid, "SIGUSR2");
    const end = performance.now() + ANSWER_WITHIN_MS;
    while (!existsSync(file)) {
      if (performance.now() > end) throw new Error(`process ${pid} does not say what it holds`);
      await sleep(20);
    }
    const bytes = Number(readFileSync(file, "utf8"));
    rmSync(file);
    return bytes / 1e6;
  }

  [Symbol.dispose](): void {
    for (const { path, text } of this.#programs) writeFileSync(path, text);
  }
}

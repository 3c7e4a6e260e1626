/** How often each fault struck while each step of an operation was under way. */
export class Counts {
  readonly #counts = new Map<string, Map<string, number>>();

  add(fault: string, step: string, times = 1): void {
    const row = this.#counts.get(fault) ?? new Map<string, number>();
    this.#counts.set(fault, row);
    row.set(step, (row.get(step) ?? 0) + times);
  }

  get(fault: string, step: string): number {
    return this.#counts.get(fault)?.get(step) ?? 0;
  }

  /** Over the steps of one operation: their names begin with it. */
  of(fault: string, operation: string): number {
    let sum = 0;
    for (const [step, count] of this.#counts.get(fault) ?? [])
      if (step === operation || step.startsWith(`${operation} `)) sum += count;
    return sum;
  }

  /** Of all faults together. */
  met(step: string): number {
    let sum = 0;
    for (const fault of this.#counts.keys()) sum += this.get(fault, step);
    return sum;
  }

  /** As `table`, one row a step, with a sum: for many steps and few faults. */
  columns(): string {
    const faults = [...this.#counts.keys()].sort();
    const steps = [...new Set([...this.#counts.values()].flatMap((row) => [...row.keys()]))].sort();
    const width = Math.max(...steps.map((step) => step.length), 4);
    const lines = [["".padEnd(width), ...faults, "sum"].join("  ")];
    for (const step of steps) {
      const cells = faults.map((fault) => String(this.get(fault, step) || "·").padStart(fault.length));
      lines.push([step.padEnd(width), ...cells, String(this.met(step)).padStart(3)].join("  "));
    }
    return lines.join("\n");
  }

  /** One row a fault, one column a step; a column of its own for strikes that met nothing under way. */
  table(): string {
    const steps = [...new Set([...this.#counts.values()].flatMap((row) => [...row.keys()]))].sort();
    const width = Math.max(...[...this.#counts.keys()].map((fault) => fault.length), 5);
    const lines = [`${"".padEnd(width)}  ${steps.join("  ")}`];
    for (const fault of [...this.#counts.keys()].sort()) {
      const cells = steps.map((step) => String(this.get(fault, step) || "·").padStart(step.length));
      lines.push(`${fault.padEnd(width)}  ${cells.join("  ")}`);
    }
    return lines.join("\n");
  }
}

import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { Edit, Fault, NamedTest } from "./fault.ts";

const repository = join(import.meta.dirname, "../..");

function read(file: string): string | undefined {
  const path = join(repository, file);
  return existsSync(path) ? readFileSync(path, "utf8") : undefined;
}

function count(text: string, part: string): number {
  return text.split(part).length - 1;
}

function testProblem({ file, title }: NamedTest): string | undefined {
  const source = read(file);
  if (source === undefined) return `${file} does not exist`;
  const quoted = [JSON.stringify(title), `'${title}'`, `\`${title}\``];
  const found = quoted.reduce((sum, text) => sum + count(source, text), 0);
  return found === 1 ? undefined : `${file}: the title ${JSON.stringify(title)} is there ${found} times`;
}

function editProblem({ file, from, to }: Edit): string | undefined {
  const source = read(file);
  if (source === undefined) return `${file} does not exist`;
  if (from === to) return `${file}: an edit changes nothing`;
  const found = count(source, from);
  return found === 1 ? undefined : `${file}: ${JSON.stringify(from)} is there ${found} times, not once`;
}

function* problemsOf(fault: Fault): Generator<string> {
  const kinds = [fault.guards, fault.notBuilt, fault.otherwise].filter((kind) => kind !== undefined);
  if (kinds.length !== 1) yield "has to be guarded, of a part that is not built, or explained";
  if (fault.guards?.length === 0) yield "has no guard";
  for (const { test, without } of fault.guards ?? []) {
    yield testProblem(test) ?? "";
    if (without.length === 0) yield `${test.title}: no defence is named`;
    for (const edit of without) yield editProblem(edit) ?? "";
  }
}

/** What of the table is not so: titles that no test has, edits that do not fit the sources, entries that say nothing. */
export function problems(faults: readonly Fault[]): readonly string[] {
  const seen = new Set<string>();
  return faults.flatMap((fault) => {
    const twice = fault.ids.filter((id) => seen.has(id)).map((id) => `${id} is listed twice`);
    for (const id of fault.ids) seen.add(id);
    const found = [...problemsOf(fault)].filter((problem) => problem !== "");
    return [...twice, ...found.map((problem) => `${fault.ids[0]}: ${problem}`)];
  });
}

/** How many faults there are of each kind, in words. */
export function counts(faults: readonly Fault[]): string {
  const guards = faults.flatMap((fault) => fault.guards ?? []).length;
  const guarded = faults.filter((fault) => fault.guards !== undefined).length;
  const missing = faults.filter(({ notBuilt }) => notBuilt !== undefined).length;
  const rest = faults.length - guarded - missing;
  return `${faults.length}, of which ${guarded} are kept out by ${guards} pairs of test and defence, ${missing} are of parts that are not built, and ${rest} are no matter of a defence`;
}

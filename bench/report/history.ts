import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { History, Result } from "../support/report.ts";

/** Recorded runs, read back. A file may be cut off or come from elsewhere: nothing in it is taken for granted. */

export interface Recorded {
  /** Oldest first. */
  readonly runs: readonly History[];
  /** Lines that are no run. */
  readonly unreadable: number;
}

const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const isText = (value: unknown): value is string => typeof value === "string";
const isNumber = (value: unknown): value is number => typeof value === "number" && Number.isFinite(value);

function isResult(value: unknown): value is Result {
  if (!isRecord(value) || !isText(value["id"]) || !isText(value["what"]) || !isText(value["unit"])) return false;
  const { measured, reference, limit, details, budget, met } = value;
  return (
    isNumber(measured) &&
    (reference === undefined || (isRecord(reference) && isText(reference["what"]) && isNumber(reference["value"]))) &&
    (limit === undefined || (isRecord(limit) && Object.values(limit).every(isNumber))) &&
    (details === undefined || isRecord(details)) &&
    (budget === undefined || isText(budget)) &&
    (met === undefined || typeof met === "boolean")
  );
}

function runOf(line: string): History | undefined {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    return undefined;
  }
  if (!isRecord(value) || !isText(value["at"]) || Number.isNaN(Date.parse(value["at"]))) return undefined;
  const { machine, results } = value;
  if (!isRecord(machine) || !Array.isArray(results)) return undefined;
  const texts = ["cpu", "kernel", "node", "mode", "commit"].every((key) => isText(machine[key]));
  if (!texts || !isNumber(machine["cores"]) || !isNumber(machine["load"])) return undefined;
  return { ...(value as unknown as History), results: results.filter(isResult) };
}

/** The runs of JSON lines, in any order; a run that is there twice counts once. */
export function parseRuns(text: string): Recorded {
  const runs = new Map<string, History>();
  let unreadable = 0;
  for (const line of text.split("\n")) {
    if (line.trim() === "") continue;
    const run = runOf(line);
    if (run === undefined) unreadable += 1;
    else if (run.results.length > 0) runs.set(`${run.at} ${run.machine.commit}`, run);
  }
  return { runs: [...runs.values()].sort((a, b) => Date.parse(a.at) - Date.parse(b.at)), unreadable };
}

/** All runs of the `.jsonl` files in these folders; a folder that does not exist has none. */
export function readRuns(folders: readonly string[]): Recorded {
  const texts = folders.flatMap((folder) => {
    let names: string[];
    try {
      names = readdirSync(folder);
    } catch {
      return [];
    }
    return names.filter((name) => name.endsWith(".jsonl")).map((name) => readFileSync(join(folder, name), "utf8"));
  });
  return parseRuns(texts.join("\n"));
}

import { type CommandSpec, type Flag, GLOBAL_FLAGS, type NameKind } from "../args.ts";
import { type CommandEntry, everything, findCommand, type Group, subgroup } from "../commands/index.ts";
import type { Surroundings } from "../context.ts";
import { writeAll } from "../output/terminal.ts";
import { liveNames } from "./names.ts";

export const SHELLS = ["bash", "zsh", "fish"] as const;

/** What may stand at the cursor. */
export interface Candidate {
  readonly word: string;
  readonly about?: string;
}

/** Candidates, or `files`: the shell knows those better. */
export type Completion = readonly Candidate[] | "files";

/**
 * Answers the completions of shells: `files`, or lines of a word and, behind a tab, what it means. Never fails, never writes an error, and
 * never starts a gateway: nobody asked for one by pressing a key.
 */
export async function complete(argv: readonly string[], surroundings: Surroundings): Promise<number> {
  const [shell = "", ...words] = argv;
  try {
    const found = await completionOf(joined(words), surroundings);
    const lines = found === "files" ? ["files"] : found.map((candidate) => line(candidate, words, shell));
    await writeAll(surroundings.stdout, lines.map((text) => `${text}\n`).join(""));
  } catch {
    // A key that completes nothing says enough.
  }
  return 0;
}

function line({ word, about }: Candidate, words: readonly string[], shell: string): string {
  // Bash parts words at "=", so that the option stands before the cursor already.
  const shown =
    shell === "bash" && (words.at(-1) === "=" || words.at(-2) === "=") ? word.slice(word.indexOf("=") + 1) : word;
  return about === undefined || shell === "bash" ? shown : `${shown}\t${about}`;
}

/** Words as they were typed: `--gateway = x` of bash is `--gateway=x`. */
function joined(words: readonly string[]): readonly string[] {
  const result: string[] = [];
  for (let index = 0; index < words.length; index += 1) {
    const word = words[index]!;
    const last = result.at(-1);
    if (word === "=" && last?.startsWith("--") === true && !last.includes("=")) {
      result[result.length - 1] = `${last}=${words[index + 1] ?? ""}`;
      index += 1;
    } else result.push(word);
  }
  return result;
}

/** What was typed before the cursor. */
interface Typed {
  readonly given: Map<string, string[]>;
  readonly positionals: string[];
  /** An option that waits for its value. */
  pending: Flag | undefined;
  /** What follows is a command of its own. */
  inCommand: boolean;
}

/** What can stand in place of the last of `words`, which is what has been typed of it. */
export async function completionOf(words: readonly string[], surroundings: Surroundings): Promise<Completion> {
  const current = words.at(-1) ?? "";
  const before = words.slice(0, -1);
  const { entry, group, rest } = commandOf(before);
  const spec = entry === undefined ? undefined : (await entry.load()).spec;
  const flags = [...(spec?.flags ?? []), ...GLOBAL_FLAGS];
  const typed = read(rest, flags, spec);
  const found = await candidates(current, typed, { spec, group, flags, surroundings });
  if (found === "files") return "files";
  return found.filter(({ word }) => word.startsWith(current));
}

function commandOf(words: readonly string[]): {
  readonly entry?: CommandEntry;
  readonly group?: Group;
  /** The words without those of the command. */
  readonly rest: readonly string[];
} {
  const rest: string[] = [];
  let group: Group | undefined;
  for (let index = 0; index < words.length; index += 1) {
    const word = words[index]!;
    if (word === "--") break;
    if (word.startsWith("-")) {
      rest.push(word);
      if (valued(GLOBAL_FLAGS, word) !== undefined && index + 1 < words.length) {
        index += 1;
        rest.push(words[index]!);
      }
      continue;
    }
    const found = group === undefined ? findCommand(word) : group.commands.find(({ name }) => name === word);
    const nested = found === undefined && group !== undefined ? subgroup(group, word) : undefined;
    if (nested !== undefined) {
      group = nested;
      continue;
    }
    if (found === undefined)
      return { rest: [...rest, ...words.slice(index)], ...(group === undefined ? {} : { group }) };
    if ("commands" in found) group = found;
    else return { entry: found, rest: [...rest, ...words.slice(index + 1)] };
  }
  return { rest, ...(group === undefined ? {} : { group }) };
}

/** The option that `word` is, when its value is the next word. */
function valued(flags: readonly Flag[], word: string): Flag | undefined {
  const flag = flags.find(({ long, short }) => word === `--${long}` || (short !== undefined && word === `-${short}`));
  return flag?.value === undefined || flag.value.startsWith("[") ? undefined : flag;
}

function read(words: readonly string[], flags: readonly Flag[], spec: CommandSpec | undefined): Typed {
  const typed: Typed = { given: new Map(), positionals: [], pending: undefined, inCommand: false };
  const give = (long: string, value: string): void => {
    typed.given.set(long, [...(typed.given.get(long) ?? []), value]);
  };
  for (const word of words) {
    const { pending } = typed;
    if (pending !== undefined) {
      give(pending.long, word);
      typed.pending = undefined;
    } else if (word === "--") {
      typed.inCommand = true;
      return typed;
    } else if (word.startsWith("-") && word !== "-") {
      typed.pending = valued(flags, word);
      const [name = "", ...value] = word.replace(/^--?/, "").split("=");
      const flag = flags.find(({ long, short }) => long === name || short === name);
      if (typed.pending === undefined && flag !== undefined) give(flag.long, value.join("="));
    } else if (spec?.trailing === "direct") {
      typed.inCommand = true;
      return typed;
    } else typed.positionals.push(word);
  }
  return typed;
}

interface Place {
  readonly spec: CommandSpec | undefined;
  readonly group: Group | undefined;
  readonly flags: readonly Flag[];
  readonly surroundings: Surroundings;
}

async function candidates(current: string, typed: Typed, place: Place): Promise<Completion> {
  const { spec, group, flags } = place;
  if (typed.inCommand) return "files";
  if (typed.pending !== undefined) return valuesOf(typed.pending, typed, place);
  const inline = /^(--[^=]+=)/.exec(current)?.[1];
  if (inline !== undefined) {
    const flag = valued(flags, inline.slice(0, -1));
    const values = flag === undefined ? [] : await valuesOf(flag, typed, place);
    return values === "files" ? "files" : values.map(({ word, about }) => candidate(inline + word, about));
  }
  if (current.startsWith("-")) return optionsLeft(flags, typed);
  if (spec === undefined) {
    if (typed.positionals.length > 0) return [];
    const entries = group === undefined ? everything() : group.commands;
    return firstWords(entries.filter((entry) => !("hidden" in entry && entry.hidden === true)));
  }
  const wanted = spec.positionals ?? [];
  const position = wanted[typed.positionals.length] ?? (wanted.at(-1)?.many === true ? wanted.at(-1) : undefined);
  if (position === undefined) return spec.trailing === "direct" ? "files" : [];
  if (position.choices !== undefined) return position.choices.map((word) => ({ word }));
  if (position.names === undefined) return "files";
  const names = await named(position.names, typed, place);
  return names.filter(({ word }) => !typed.positionals.includes(word));
}

/** Commands by their first word; several that share it are one candidate. */
function firstWords(entries: readonly { readonly name: string; readonly summary: string }[]): readonly Candidate[] {
  const found = new Map<string, Candidate>();
  for (const { name, summary } of entries) {
    const [word, ...more] = name.split(" ");
    if (!found.has(word!)) found.set(word!, more.length === 0 ? { word: word!, about: summary } : { word: word! });
  }
  return [...found.values()];
}

function candidate(word: string, about: string | undefined): Candidate {
  return about === undefined ? { word } : { word, about };
}

function optionsLeft(flags: readonly Flag[], typed: Typed): readonly Candidate[] {
  const excluded = new Set(
    flags.filter(({ long }) => typed.given.has(long)).flatMap(({ conflicts }) => conflicts ?? []),
  );
  return flags
    .filter((flag) => flag.hidden !== true && (flag.many === true || !typed.given.has(flag.long)))
    .filter((flag) => !excluded.has(flag.long) && flag.conflicts?.some((other) => typed.given.has(other)) !== true)
    .map(({ long, help }) => ({ word: `--${long}`, about: help }));
}

async function valuesOf(flag: Flag, typed: Typed, place: Place): Promise<Completion> {
  if (flag.choices !== undefined) return flag.choices.map((word) => ({ word }));
  if (flag.names !== undefined) return named(flag.names, typed, place);
  return /FILE|PATH|FOLDER|SRC/.test(flag.value ?? "") ? "files" : [];
}

function named(kind: NameKind, { given, positionals }: Typed, { surroundings }: Place): Promise<readonly Candidate[]> {
  const globals = GLOBAL_FLAGS.flatMap(({ long, value }) =>
    (given.get(long) ?? []).slice(-1).map((text) => (value === undefined ? `--${long}` : `--${long}=${text}`)),
  );
  return liveNames(kind, globals, positionals[0], surroundings);
}

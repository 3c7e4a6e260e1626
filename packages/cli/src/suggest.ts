import { allNames, everything, type Group } from "./commands/index.ts";
import { nearestName } from "./nearest.ts";

/** What other tools call the commands of a group. */
const OTHER_WORDS: Readonly<Record<string, string>> = {
  ls: "list",
  ps: "list",
  rm: "delete",
  remove: "delete",
  destroy: "delete",
  kill: "delete",
  show: "get",
  describe: "get",
  inspect: "get",
  info: "get",
  new: "create",
  add: "create",
  attach: "connect",
  enter: "connect",
  shell: "connect",
  ssh: "connect",
  login: "connect",
  pause: "stop",
  restart: "start",
  resume: "start",
  edit: "update",
  check: "validate",
  why: "explain",
};

/** What somebody may have meant who typed this as the first word: the words behind `openshell`, or undefined. */
export function meantCommand(word: string): string | undefined {
  if (word === "version") return "--version";
  if (/^(secret|credential|key|token)s?$/.test(word)) return "provider";
  if (word === "log") return "logs";
  const groups = everything().filter((entry): entry is Group => "commands" in entry);
  for (const wanted of [word, OTHER_WORDS[word]]) {
    const group = groups.find(({ commands }) => commands.some(({ name }) => name === wanted));
    if (group !== undefined) return `${group.name} ${wanted}`;
  }
  return nearestName(word, allNames());
}

/** The same for the second word. */
export function meantInGroup(group: Group, word: string): string | undefined {
  const names = group.commands.map(({ name }) => name);
  const other = OTHER_WORDS[word];
  const found = other !== undefined && names.includes(other) ? other : nearestName(word, names);
  if (found !== undefined) return `${group.name} ${found}`;
  return allNames().includes(word) ? word : undefined;
}

import type { CommandModule } from "../dispatch.ts";
// Part of the first bundle, since they are run most; every dynamic import below is a bundle of its own.
import * as runCommand from "./run.ts";
import * as execCommand from "./sandbox-exec.ts";
import * as statusCommand from "./status.ts";

/** One command: what help says of it in one line, and where its code is. */
export interface CommandEntry {
  /** A group's command may have two words: those with the same first word make a group of their own. */
  readonly name: string;
  readonly summary: string;
  readonly hidden?: boolean;
  load(): Promise<CommandModule>;
}

export interface Group {
  readonly name: string;
  readonly alias?: string;
  readonly summary: string;
  readonly commands: readonly CommandEntry[];
}

/** Headings of the root help, in order. */
export const SECTIONS: readonly { readonly title: string; readonly names: readonly string[] }[] = [
  { title: "SANDBOX COMMANDS", names: ["run", "sandbox", "logs", "policy", "settings", "provider"] },
  { title: "GATEWAY COMMANDS", names: ["gateway", "status"] },
  { title: "ADDITIONAL COMMANDS", names: ["completions"] },
];

const single: readonly (CommandEntry & { readonly alias?: string })[] = [
  { name: "run", summary: "run one command in a sandbox of its own", load: async () => runCommand },
  { name: "logs", alias: "lg", summary: "show or follow the log of a sandbox", load: () => import("./logs.ts") },
  { name: "status", summary: "show the gateway and how it is reached", load: async () => statusCommand },
  { name: "completions", summary: "print completions for a shell", load: () => import("./completions.ts") },
];

const groups: readonly Group[] = [
  {
    name: "sandbox",
    alias: "sb",
    summary: "create, use and remove sandboxes",
    commands: [
      { name: "create", summary: "create a sandbox", load: () => import("./sandbox-create.ts") },
      { name: "get", summary: "show one sandbox", load: () => import("./sandbox-get.ts") },
      { name: "list", summary: "list sandboxes", load: () => import("./sandbox-list.ts") },
      {
        name: "connect",
        summary: "join the terminal of a sandbox, or open a shell in it",
        load: () => import("./sandbox-connect.ts"),
      },
      { name: "exec", summary: "run a command in a sandbox", load: async () => execCommand },
      { name: "stop", summary: "stop a sandbox and keep its files", load: () => import("./sandbox-stop.ts") },
      { name: "start", summary: "start a stopped sandbox again", load: () => import("./sandbox-start.ts") },
      { name: "delete", summary: "remove sandboxes", load: () => import("./sandbox-delete.ts") },
      {
        name: "provider list",
        summary: "list the providers of a sandbox",
        load: () => import("./sandbox-provider-list.ts"),
      },
      {
        name: "provider attach",
        summary: "give a sandbox a provider while it exists",
        load: () => import("./sandbox-provider-attach.ts"),
      },
      {
        name: "provider detach",
        summary: "take a provider from a sandbox",
        load: () => import("./sandbox-provider-detach.ts"),
      },
      {
        name: "provider status",
        summary: "say how far a provider is in force",
        load: () => import("./sandbox-provider-status.ts"),
      },
    ],
  },
  {
    name: "policy",
    alias: "pol",
    summary: "read, check and change what a sandbox may do",
    commands: [
      { name: "get", summary: "show the policy of a sandbox", load: () => import("./policy-get.ts") },
      { name: "set", summary: "replace the policy of a sandbox", load: () => import("./policy-set.ts") },
      { name: "update", summary: "change a part of the policy of a sandbox", load: () => import("./policy-update.ts") },
      { name: "list", summary: "list the revisions of a policy", load: () => import("./policy-list.ts") },
      { name: "delete", summary: "remove the policy of the gateway", load: () => import("./policy-delete.ts") },
      { name: "explain", summary: "say why something is allowed or not", load: () => import("./policy-explain.ts") },
      { name: "validate", summary: "check a policy file", load: () => import("./policy-validate.ts") },
    ],
  },
  {
    name: "settings",
    summary: "read and change settings of sandboxes or of the gateway",
    commands: [
      { name: "get", summary: "show the settings", load: () => import("./settings-get.ts") },
      { name: "set", summary: "set one", load: () => import("./settings-set.ts") },
      { name: "delete", summary: "unset one", load: () => import("./settings-delete.ts") },
    ],
  },
  {
    name: "provider",
    summary: "store credentials that sandboxes use and never see",
    commands: [
      { name: "create", summary: "store a provider", load: () => import("./provider-create.ts") },
      { name: "get", summary: "show one provider, without values", load: () => import("./provider-get.ts") },
      { name: "list", summary: "list providers", load: () => import("./provider-list.ts") },
      { name: "update", summary: "change credentials or settings", load: () => import("./provider-update.ts") },
      { name: "delete", summary: "remove providers", load: () => import("./provider-delete.ts") },
    ],
  },
  {
    name: "gateway",
    alias: "gw",
    summary: "start and stop the gateway of this machine",
    commands: [
      { name: "start", summary: "start the gateway", load: () => import("./gateway-start.ts") },
      { name: "stop", summary: "stop the gateway", load: () => import("./gateway-stop.ts") },
      {
        name: "status",
        summary: "say whether it runs, and where its files are",
        load: () => import("./gateway-status.ts"),
      },
    ],
  },
];

export function findCommand(word: string): CommandEntry | Group | undefined {
  return (
    single.find((item) => item.name === word || item.alias === word) ??
    groups.find((item) => item.name === word || item.alias === word)
  );
}

/** The commands of a group whose names begin with this word, as a group without it. */
export function subgroup(group: Group, word: string): Group | undefined {
  const commands = group.commands.flatMap((entry) =>
    entry.name.startsWith(`${word} `) ? [{ ...entry, name: entry.name.slice(word.length + 1) }] : [],
  );
  const summary = `commands of openshell ${group.name} ${word}`;
  return commands.length === 0 ? undefined : { name: `${group.name} ${word}`, summary, commands };
}

export function allNames(): readonly string[] {
  return [...single, ...groups].map((item) => item.name);
}

export function everything(): readonly (CommandEntry | Group)[] {
  return [...single, ...groups];
}

import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

/**
 * Writes docs/security/attacks.md, the table of every attack, from the tests:
 *
 *     node tests/security/table.ts [--check]
 *
 * `--check` writes nothing and fails when the table is not up to date.
 */

interface Attack {
  readonly name: string;
  readonly asserts: string;
  readonly root: string;
  readonly user: string;
  readonly open: boolean;
}

interface Chapter {
  readonly file: string;
  /** First sentence of the file's own comment. */
  readonly about: string;
  readonly attacks: readonly Attack[];
}

const TEXT = String.raw`"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'`;
/** `attack("name", "asserts", { root: "…", user: "…" }`: literals, as attack.ts asks for. */
const ATTACK = new RegExp(
  String.raw`^(attack|openAttack)\(\s*(?:${TEXT}),\s*(?:${TEXT}),\s*\{\s*root:\s*(?:${TEXT}),\s*user:\s*(?:${TEXT}),?\s*\}`,
  "gm",
);
const CALL = /^(attack|openAttack)\(/gm;

function read(file: string): Chapter {
  const source = readFileSync(join(import.meta.dirname, file), "utf8");
  const text = (double: string | undefined, single: string | undefined): string =>
    JSON.parse(`"${double ?? (single ?? "").replaceAll("\\'", "'").replaceAll('"', '\\"')}"`) as string;
  const attacks = [...source.matchAll(ATTACK)].map((match) => ({
    open: match[1] === "openAttack",
    name: text(match[2], match[3]),
    asserts: text(match[4], match[5]),
    root: text(match[6], match[7]),
    user: text(match[8], match[9]),
  }));
  const calls = source.match(CALL)?.length ?? 0;
  if (calls !== attacks.length) throw new Error(`${file}: ${calls} attacks, ${attacks.length} could be read`);
  const about = /^\/\*\* (.*) \*\/$/m.exec(source)?.[1] ?? "";
  return { file, about, attacks };
}

function cell(text: string): string {
  return text.replaceAll("|", "\\|");
}

function table(chapters: readonly Chapter[]): string {
  const all = chapters.flatMap((chapter) => chapter.attacks);
  const open = all.filter((attack) => attack.open);
  const lines = [
    "# Attacks",
    "",
    "<!-- Made by `node tests/security/table.ts` from the tests; edit those. -->",
    "",
    `${all.length} attacks that every change is tested with, as root and as an ordinary user (\`node tests/run.ts tests/security\`).`,
    'Each is made from inside a sandbox of a real gateway unless its name or chapter says otherwise; "as root" in the last column:',
    "nothing about it depends on the mode, and root's pass alone has it. After each, whatever the attacker",
    "saw, a witness compares the world outside: the machine's mounts, links, host name and kernel settings, a file and a",
    "process of the owner's, gateway and hosts alive, and hosts that may not have received a single packet.",
    "",
    `${open.length} of them succeed, because nothing here can stop them or nothing does yet; they are marked **open**. Their tests`,
    "are the ones that should pass, and fail the suite as soon as they do. SECURITY.md says what follows for the owner.",
    "",
  ];
  for (const { file, about, attacks } of chapters) {
    lines.push(`## ${file.replace(".test.ts", "")}`, "", about, "");
    lines.push("| Attack | What has to hold outside | Attacker sees, as root | as a user |", "|---|---|---|---|");
    for (const { name, asserts, root, user, open: isOpen } of attacks) {
      const shown = isOpen ? `${name} (**open**)` : name;
      lines.push(`| ${[shown, asserts, root, user].map(cell).join(" | ")} |`);
    }
    lines.push("");
  }
  return lines.join("\n");
}

const files = readdirSync(import.meta.dirname).filter((name) => name.endsWith(".test.ts"));
const page = join(import.meta.dirname, "../../docs/security/attacks.md");
const wanted = table(files.toSorted().map(read));
if (!process.argv.includes("--check")) writeFileSync(page, wanted);
else if (readFileSync(page, "utf8") !== wanted) {
  console.error("docs/security/attacks.md is out of date; run node tests/security/table.ts");
  process.exitCode = 1;
}

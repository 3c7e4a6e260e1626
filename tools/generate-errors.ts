/** Writes docs/errors.md from the catalogue of codes; with `--check` fails when it is out of date. */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import {
  API_REASONS,
  CALL_CODES,
  COMMAND_LINE_ERRORS,
  DENIALS,
  EXIT_STATUSES,
  type Meaning,
  POLICY_PROBLEMS,
  READY_REASONS,
  RUNTIME_ERRORS,
} from "@openshell/base/catalogue/index.ts";

const path = join(import.meta.dirname, "../docs/errors.md");

function section(title: string, about: string, table: Readonly<Record<string, Meaning>>, head = "Code"): string {
  const rows = Object.entries(table).map(([code, [meaning, next]]) => `| \`${code}\` | ${meaning} | ${next} |`);
  return [`## ${title}`, "", about, "", `| ${head} | Meaning | What to do |`, "|---|---|---|", ...rows, ""].join("\n");
}

const text = [
  `# Errors

Made from \`packages/base/src/catalogue\`: \`npm run generate\`. Every code is stable; the message beside it says what happened in this very
case, and the line \`next:\` what helps there. Where the two differ from this page, they know more.
`,
  section(
    "Exit statuses of `openshell`",
    "Otherwise the status is the sandboxed command's own; 128 + N after signal N.",
    EXIT_STATUSES,
    "Status",
  ),
  section("Command line", "What `openshell` itself finds, in the line `code:`.", COMMAND_LINE_ERRORS),
  section(
    "Calls",
    "Status codes of the API, as the Connect protocol names gRPC's. `openshell` shows them as `code:`.",
    CALL_CODES,
  ),
  section(
    "Reasons of the API",
    "`google.rpc.ErrorInfo.reason` beside the status code, domain `openshell.nvidia.com`.",
    API_REASONS,
  ),
  section(
    "Refused connections and requests",
    "In the body that the agent gets, and in events. `http_…` names the rule of RFC 9112 that a request breaks: send well-formed HTTP/1.1. A destination that fails has a code of the next table.",
    DENIALS,
  ),
  section(
    "Gateway, hosts and sandboxes",
    "In logs, conditions, and errors of commands on the gateway's own machine.",
    RUNTIME_ERRORS,
  ),
  section(
    "Sandboxes",
    "Reasons of the condition `Ready`: `openshell sandbox get NAME` shows the reason with its message.",
    READY_REASONS,
    "Reason",
  ),
  section("Policies", "`openshell policy validate -o json` gives them with file, line and column.", POLICY_PROBLEMS),
].join("\n");

if (process.argv.includes("--check")) {
  if (readFileSync(path, "utf8") !== text) {
    console.error("docs/errors.md is out of date: npm run generate");
    process.exit(1);
  }
} else writeFileSync(path, text);

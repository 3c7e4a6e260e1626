import { create } from "@bufbuild/protobuf";
import { type SandboxPolicy, SandboxPolicySchema } from "@openshell/api";
import { expect, test } from "vitest";
import { staticFieldChanges } from "./static-fields.ts";

const policy = (filesystem?: object, rest: object = {}): SandboxPolicy =>
  create(SandboxPolicySchema, { version: 1, ...(filesystem === undefined ? {} : { filesystem }), ...rest });
const files = (readOnly: string[], includeWorkdir = true) => ({ includeWorkdir, readOnly, readWrite: ["/tmp"] });

test("a running sandbox loses no path; one more waits for the next start", () => {
  const before = policy(files(["/usr", "/opt"]));
  expect(staticFieldChanges(before, policy(files(["/usr"]))).violations).toEqual([
    { field: "policy.filesystem.read_only", description: "/opt cannot be removed from a running sandbox" },
  ]);
  expect(staticFieldChanges(before, policy()).violations).toEqual([
    { field: "policy.filesystem", description: "cannot be removed from a running sandbox" },
  ]);
  expect(staticFieldChanges(before, policy(files(["/usr", "/opt", "/srv"])))).toEqual({
    violations: [],
    pendingPaths: ["/srv"],
  });
});

test("the work folder, Landlock and the identity are fixed at start-up; neutral values equal absent ones", () => {
  const fields = (after: SandboxPolicy) =>
    staticFieldChanges(policy(files(["/usr"])), after).violations.map(({ field }) => field);
  expect(fields(policy(files(["/usr"], false)))).toEqual(["policy.filesystem.include_workdir"]);
  expect(fields(policy(files(["/usr"]), { landlock: { compatibility: "hard_requirement" } }))).toEqual([
    "policy.landlock",
  ]);
  expect(fields(policy(files(["/usr"]), { process: { runAsUser: "1500" } }))).toEqual(["policy.process"]);
  expect(fields(policy(files(["/usr"]), { landlock: { compatibility: "best_effort" }, process: {} }))).toEqual([]);
});

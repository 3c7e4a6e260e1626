import { expect, test } from "vitest";
import { styleFor } from "../output/style.ts";
import { ISOLATION_ANNOTATION, isolationLines, isolationSummary, isolationView } from "./isolation.ts";

const view = (...layers: readonly Record<string, unknown>[]) =>
  isolationView({ [ISOLATION_ANNOTATION]: JSON.stringify({ network_capture: "nft", layers }) })!;

test("what is not in force comes first, with its reason; what was tried is said", () => {
  const report = view(
    { name: "seccomp", enforced: true, tested: true },
    { name: "landlock", enforced: false, detail: "abi=0" },
    { name: "freezer", enforced: true, detail: "signals" },
  );
  expect(isolationLines(report, styleFor(false, "never", {}))).toEqual([
    ["  landlock", "not in force: abi=0"],
    ["  seccomp", "in force, tested"],
    ["  freezer", "in force: signals"],
  ]);
});

test("a report that is none, or of a gateway that has none, is no report", () => {
  expect(isolationView({})).toBeUndefined();
  expect(isolationView({ [ISOLATION_ANNOTATION]: "not json" })).toBeUndefined();
  expect(isolationView({ [ISOLATION_ANNOTATION]: "null" })).toBeUndefined();
});

test("several sandboxes come to one line", () => {
  const good = view({ name: "seccomp", enforced: true });
  const poor = view({ name: "landlock", enforced: false });
  expect(isolationSummary([])).toBeUndefined();
  expect(isolationSummary([good])).toBe("complete in 1 sandbox");
  expect(isolationSummary([good, poor])).toBe("not in force in some of 2 sandboxes: landlock");
});

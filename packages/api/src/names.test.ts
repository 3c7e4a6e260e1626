import { describe, expect, it } from "vitest";
import { labelKeyProblem, labelValueProblem, matchesLabels, parseLabelSelector } from "./labels.ts";
import { environmentKeyProblem, nameProblem, routableNameProblem, violation } from "./names.ts";

describe("routableNameProblem", () => {
  it.each(["a", "0", "my-sandbox", "a-1-b", "a".repeat(19)])("accepts %j", (name) =>
    expect(routableNameProblem(name)).toBeUndefined(),
  );

  it.each(["", "a".repeat(20), "A", "-a", "a-", "a--b", "a_b", "a.b", "ä", "a\n", "a/b"])("refuses %j", (name) =>
    expect(routableNameProblem(name)).toMatch(/^must /),
  );
});

describe("nameProblem", () => {
  it.each(["a", "openai", "My Provider", "a".repeat(253)])("accepts %.20j", (name) =>
    expect(nameProblem(name)).toBeUndefined(),
  );

  it.each(["", "a".repeat(254), "a/b", "a\\b", " a", "a ", "a\u0000", "a\u202eb", "a\n"])("refuses %.20j", (name) =>
    expect(nameProblem(name)).toMatch(/^must /),
  );
});

describe("environmentKeyProblem", () => {
  it.each(["PATH", "_x", "a1"])("accepts %j", (key) => expect(environmentKeyProblem(key)).toBeUndefined());

  it.each(["", "1A", "A-B", "A=B", "A".repeat(257), "OPENSHELL_X", "OPENSHELL_PYFUNC_B64"])("refuses %.20j", (key) =>
    expect(environmentKeyProblem(key)).toMatch(/^must /),
  );

  it("lets the Python SDK's function through in an exec, and no other reserved variable", () => {
    expect(environmentKeyProblem("OPENSHELL_PYFUNC_B64", "exec")).toBeUndefined();
    expect(environmentKeyProblem("OPENSHELL_TOKEN", "exec")).toContain("reserved");
  });
});

describe("violation", () => {
  it("turns a problem into a field violation and nothing into nothing", () => {
    expect(violation("name", routableNameProblem("A"))).toMatchObject({ field: "name" });
    expect(violation("name", routableNameProblem("a"))).toBeUndefined();
  });
});

describe("labels", () => {
  it.each(["app", "a.b_c-d", "example.com/app", "a".repeat(63)])("accepts the key %.20j", (key) =>
    expect(labelKeyProblem(key)).toBeUndefined(),
  );

  it.each(["", "-a", "a-", "a".repeat(64), "Example.com/app", "/a", "a/", "a/b/c", `${"a".repeat(250)}/app`, "a b"])(
    "refuses the key %.20j",
    (key) => expect(labelKeyProblem(key)).toMatch(/^must /),
  );

  it("accepts empty values and refuses long or odd ones", () => {
    expect(labelValueProblem("")).toBeUndefined();
    expect(labelValueProblem("v1.2")).toBeUndefined();
    expect(labelValueProblem("a".repeat(64))).toBeDefined();
    expect(labelValueProblem("a b")).toBeDefined();
  });

  it("parses and matches selectors", () => {
    const wanted = parseLabelSelector("app=web, tier=");
    expect([...wanted]).toEqual([
      ["app", "web"],
      ["tier", ""],
    ]);
    expect(matchesLabels({ app: "web", tier: "", more: "x" }, wanted)).toBe(true);
    expect(matchesLabels({ app: "web" }, wanted)).toBe(false);
    expect(matchesLabels({}, parseLabelSelector(""))).toBe(true);
    expect(matchesLabels({}, parseLabelSelector("constructor="))).toBe(false);
  });

  it.each([
    "app",
    "app!=web",
    "=x",
    "a=1,a=2",
    "a=1,,b=2",
    Array.from({ length: 65 }, (_, index) => `k${index}=v`).join(","),
  ])("refuses the selector %.20j", (text) => expect(() => parseLabelSelector(text)).toThrow("label_selector"));
});

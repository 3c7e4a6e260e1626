import { describe, expect, it } from "vitest";
import { processEnvironment } from "./environment.ts";

describe("processEnvironment", () => {
  const base = { PATH: "/usr/bin", HTTPS_PROXY: "http://127.0.0.1:3128" };
  it("lets a request change ordinary variables", () => {
    expect(processEnvironment({ base, providers: {}, requested: { PATH: "/x" }, tty: false })).toMatchObject({
      PATH: "/x",
      TERM: "dumb",
    });
  });
  it("keeps a placeholder where a request names the same variable", () => {
    const environment = processEnvironment({
      base,
      providers: { KEY: "openshell:resolve:env:KEY" },
      requested: { KEY: "real" },
      tty: true,
    });
    expect(environment["KEY"]).toBe("openshell:resolve:env:KEY");
  });
  it("lets nobody set the product's own variables", () => {
    const environment = processEnvironment({
      base,
      providers: { OPENSHELL_X: "1" },
      requested: { OPENSHELL_SANDBOX: "0", OPENSHELL_Y: "1" },
      tty: false,
    });
    expect(environment["OPENSHELL_SANDBOX"]).toBe("1");
    expect(Object.keys(environment).filter((name) => name.startsWith("OPENSHELL_"))).toEqual(["OPENSHELL_SANDBOX"]);
  });
  it("carries the function that the Python package sends", () => {
    const parts = { base, providers: { OPENSHELL_PYFUNC_B64: "no" }, tty: false };
    const requested = { OPENSHELL_PYFUNC_B64: "gASV", OPENSHELL_PYFUNC: "1" };
    const environment = processEnvironment({ ...parts, requested });
    expect(environment["OPENSHELL_PYFUNC_B64"]).toBe("gASV");
    expect(environment["OPENSHELL_PYFUNC"]).toBeUndefined();
    expect(processEnvironment({ ...parts, requested: {} })["OPENSHELL_PYFUNC_B64"]).toBeUndefined();
  });
});

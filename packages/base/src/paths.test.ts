import { describe, expect, it } from "vitest";
import { checkSocketPath, clientConfigRoot, gatewayPaths } from "./paths.ts";

describe("gatewayPaths", () => {
  it("uses the system folders for root", () => {
    const paths = gatewayPaths("local", { uid: 0, env: {}, home: "/h" });
    expect(paths).toMatchObject({ state: "/var/lib/openshell/local", runtime: "/run/openshell/local" });
  });
  it("uses XDG folders for a user, and a run folder under state without XDG_RUNTIME_DIR", () => {
    const where = { uid: 1000, env: { XDG_CONFIG_HOME: "/c" }, home: "/h" };
    expect(gatewayPaths("local", where)).toMatchObject({
      config: "/c/openshell/local",
      state: "/h/.local/state/openshell/local",
      runtime: "/h/.local/state/openshell/local/run",
    });
    expect(clientConfigRoot(where)).toBe("/c/openshell");
  });
  it("ignores XDG variables that are empty or relative, as the specification says", () => {
    const plain = gatewayPaths("local", { uid: 1000, env: {}, home: "/h" });
    const env = { XDG_CONFIG_HOME: "c", XDG_STATE_HOME: "./s", XDG_RUNTIME_DIR: "" };
    expect(gatewayPaths("local", { uid: 1000, env, home: "/h" })).toEqual(plain);
  });
  it("refuses a gateway name that could leave its folder", () => {
    expect(() => gatewayPaths("../x", { uid: 0, env: {}, home: "/h" })).toThrow(/DNS label/);
  });
  it("refuses a socket path that does not fit", () => {
    expect(() => checkSocketPath(`/${"x".repeat(100)}`)).toThrow(/XDG_RUNTIME_DIR|exceeds/);
  });
});

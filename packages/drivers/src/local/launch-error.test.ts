import { RuntimeError } from "@openshell/base";
import { describe, expect, it } from "vitest";
import { DriverError } from "../driver.ts";
import { launchFailed } from "./launch-error.ts";

const launcher = (step: string, errno: number, detail = ""): RuntimeError =>
  new RuntimeError("sandbox_launch_failed", `step ${step}`, { next: "Do this", cause: { step, errno, detail } });

describe("launchFailed", () => {
  it("keeps an error that is the driver's already", () => {
    const error = new DriverError("stop_failed", "x");
    expect(launchFailed(error, { root: { kind: "host" }, volumes: [] })).toBe(error);
  });
  it("names the file system that refuses an id map", () => {
    const volume = { source: "/proc", target: "/v", access: "rw" } as const;
    const error = launchFailed(launcher("volume-idmap", 22, "/proc/self"), {
      root: { kind: "host" },
      volumes: [volume],
    });
    expect([error.code, error.message]).toEqual([
      "volume_unavailable",
      "/proc lies on a file system (proc) that refuses id-mapped mounts",
    ]);
  });
  it("passes the launcher's reason and next step on", () => {
    const error = launchFailed(launcher("clone", 1), { root: { kind: "host" }, volumes: [] });
    expect(error).toMatchObject({ code: "launch_failed", message: "step clone", next: "Do this", retryable: false });
  });
  it("may be retried when the machine is short of something now", () => {
    expect(launchFailed(launcher("clone", 11), { root: { kind: "host" }, volumes: [] }).retryable).toBe(true);
    expect(
      launchFailed(Object.assign(new Error("full"), { code: "ENOSPC" }), { root: { kind: "host" }, volumes: [] }),
    ).toMatchObject({
      code: "launch_failed",
      retryable: true,
      message: "the sandbox could not be started: full",
    });
  });
});

import { describe, expect, it } from "vitest";
import type { SessionState } from "../sessions/session.ts";
import { APPLY_WAIT_MS, MAX_APPLY_WAIT_MS } from "./limits.ts";
import { WAIT_HEADER, waitLimit } from "./wait-limit.ts";

describe("the wait for an outcome", () => {
  const limit = (said?: string, timeoutMs?: number, session: SessionState | undefined = "ready") =>
    waitLimit(
      {
        requestHeader: new Headers(said === undefined ? {} : { [WAIT_HEADER]: said }),
        timeoutMs: () => timeoutMs,
      },
      session,
    );

  it("is a few seconds for a sandbox whose supervisor is there, and none for others", () => {
    expect(limit()).toBe(APPLY_WAIT_MS);
    expect(limit(undefined, undefined, "accepted")).toBe(APPLY_WAIT_MS);
    for (const session of ["starting", "held", "closed"] as const) expect(limit(undefined, undefined, session)).toBe(0);
    expect(waitLimit({ requestHeader: new Headers(), timeoutMs: () => undefined }, undefined)).toBe(0);
  });

  it("is what the caller says, within bounds", () => {
    expect(limit("0")).toBe(0);
    expect(limit("20", undefined, "held")).toBe(20_000);
    expect(limit("3600")).toBe(MAX_APPLY_WAIT_MS);
    for (const nonsense of ["", "-1", "1.5", "soon", "99999"]) expect(limit(nonsense)).toBe(APPLY_WAIT_MS);
  });

  it("ends before the caller's deadline", () => {
    expect(limit(undefined, 1_000)).toBe(800);
    expect(limit("60", 1_000)).toBe(800);
    expect(limit("60", 100)).toBe(0);
    expect(limit("1", 60_000)).toBe(1_000);
  });
});

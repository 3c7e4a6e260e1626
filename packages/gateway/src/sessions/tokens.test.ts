import type { Clock } from "@openshell/base";
import { beforeEach, describe, expect, it } from "vitest";
import { TOKEN_LIFETIME_MS } from "./limits.ts";
import { TokenTable } from "./tokens.ts";

describe("sandbox tokens", () => {
  let now = 0;
  let jump = 0;
  const clock: Clock = { now: () => now + jump, monotonic: () => now, sleep: () => new Promise(() => {}) };
  let tokens: TokenTable;
  beforeEach(() => {
    now = 1_000_000;
    jump = 0;
    tokens = new TokenTable(clock);
  });

  it("speak for one sandbox, generation and epoch, until they expire", () => {
    const { token, claims } = tokens.assign("a", 3n, "h");
    expect(tokens.verify(token)).toMatchObject({ sandboxId: "a", generation: 3n, epoch: claims.epoch, hostId: "h" });
    expect(tokens.verify(`${token}x`)).toBeUndefined();
    now += TOKEN_LIFETIME_MS;
    expect(tokens.verify(token)).toBeUndefined();
  });

  it("of a clock that was set forward afterwards locked a host out for as long as it lived", () => {
    jump = -2 * TOKEN_LIFETIME_MS;
    const { token } = tokens.assign("a", 1n, "h");
    jump = 0;
    expect(tokens.verify(token)).toMatchObject({ sandboxId: "a" });
    jump = -2 * TOKEN_LIFETIME_MS;
    now += TOKEN_LIFETIME_MS;
    expect(tokens.verify(token)).toBeUndefined();
  });

  it("end when the sandbox is given to another host, and epochs only grow", () => {
    const first = tokens.assign("a", 1n, "h1");
    const second = tokens.assign("a", 1n, "h2");
    expect(tokens.verify(first.token)).toBeUndefined();
    expect(tokens.verify(second.token)?.hostId).toBe("h2");
    expect(second.claims.epoch).toBeGreaterThan(first.claims.epoch);
    now -= 5_000;
    expect(tokens.assign("b", 1n, "h").claims.epoch).toBeGreaterThan(second.claims.epoch);
  });

  it("are replaced without a gap: the one before works until it expires, the one before that no more", () => {
    const first = tokens.assign("a", 1n, "h");
    now += 10;
    const second = tokens.renew("a")!;
    expect([first, second].map(({ token }) => tokens.verify(token)?.epoch)).toEqual([
      first.claims.epoch,
      first.claims.epoch,
    ]);
    const third = tokens.renew("a")!;
    expect(tokens.verify(first.token)).toBeUndefined();
    expect(tokens.verify(second.token)).toBeDefined();
    expect(tokens.verify(third.token)).toBeDefined();
  });

  it("end at once when they are revoked", () => {
    const { token } = tokens.assign("a", 1n, "h");
    tokens.renew("a");
    tokens.revoke("a");
    expect(tokens.verify(token)).toBeUndefined();
    expect(tokens.renew("a")).toBeUndefined();
    expect(tokens.assignment("a")).toBeUndefined();
  });
});

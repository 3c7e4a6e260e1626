import { describe, expect, it } from "vitest";
import type { NetworkEvent, OcsfEvent } from "./events.ts";
import { DenialFolder, FoldLimit } from "./fold.ts";

const denial = (time: number, host = "evil.example", pid = 1): NetworkEvent => ({
  class: "network",
  activity: "open",
  time,
  severity: "medium",
  action: "denied",
  process: { name: "/usr/bin/curl", pid },
  destination: { host, port: 443 },
  reason: "no",
});

describe("DenialFolder", () => {
  it("passes the first of a second and tells the rest as one count", () => {
    const folder = new DenialFolder();
    const written: OcsfEvent[] = [];
    for (let n = 0; n < 100; n += 1) written.push(...folder.offer(denial(1000 + n, "evil.example", n)));
    expect(written).toHaveLength(FoldLimit.perSecond);
    expect(folder.pending).toBe(true);
    const next = folder.offer(denial(2000));
    expect(next).toHaveLength(2);
    expect(next[0]?.attributes).toEqual({ folded: 100 - FoldLimit.perSecond });
    expect(next[1]).toEqual(denial(2000));
    expect(folder.pending).toBe(false);
  });

  it("never folds what is no denial", () => {
    const folder = new DenialFolder();
    const allowed: OcsfEvent = { ...denial(1000), action: "allowed" };
    for (let n = 0; n < 100; n += 1) expect(folder.offer(allowed)).toEqual([allowed]);
  });

  it("bounds how many kinds an agent can invent", () => {
    const folder = new DenialFolder();
    let written = 0;
    for (let n = 0; n < 10_000; n += 1) written += folder.offer(denial(1000, `h${n}.example`)).length;
    expect(written).toBe(FoldLimit.kinds);
    const [rest, ...more] = folder.drain();
    expect(more).toEqual([]);
    expect(rest?.attributes).toEqual({ folded_other: 10_000 - FoldLimit.kinds });
  });
});

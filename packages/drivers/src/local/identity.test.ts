import { describe, expect, it } from "vitest";
import { FIRST_BLOCK_ID, ID_BLOCKS, type IdentityMode, resolveIdentity } from "./identity.ts";

const ROOT: IdentityMode = { kind: "root", firstId: FIRST_BLOCK_ID, blocks: ID_BLOCKS };
const USER: IdentityMode = { kind: "user", uid: 1234, gid: 100 };
const NONE = { runAsUser: "", runAsGroup: "" };

describe("resolveIdentity as root", () => {
  it("gives each sandbox a block of its own and the agent uid 1000", () => {
    const first = resolveIdentity(NONE, ROOT, 0);
    expect(first.plan).toMatchObject({
      uid: 1000,
      gid: 1000,
      uidMap: [{ inside: 0, outside: 0x70000000, count: 65536 }],
      denySetgroups: false,
    });
    const second = resolveIdentity(NONE, ROOT, 1);
    expect(second.outsideUid - first.outsideUid).toBe(65536);
  });
  it("stays below systemd's foreign ids with the last block", () => {
    const last = resolveIdentity({ runAsUser: "65535", runAsGroup: "" }, ROOT, ID_BLOCKS - 1);
    expect(last.outsideUid).toBeLessThan(0x7ffe0000);
  });
  it("takes ids from the policy; the group follows the user", () => {
    expect(resolveIdentity({ runAsUser: "1234", runAsGroup: "" }, ROOT, 0).plan).toMatchObject({
      uid: 1234,
      gid: 1234,
    });
    expect(resolveIdentity({ runAsUser: "sandbox", runAsGroup: "50" }, ROOT, 0).plan).toMatchObject({
      uid: 1000,
      gid: 50,
    });
  });
  it("maps an id beyond the block to the block's last host id", () => {
    const identity = resolveIdentity({ runAsUser: "4294967294", runAsGroup: "" }, ROOT, 2);
    const base = FIRST_BLOCK_ID + 2 * 65536;
    expect(identity.plan.uidMap).toEqual([
      { inside: 0, outside: base, count: 65535 },
      { inside: 4294967294, outside: base + 65535, count: 1 },
    ]);
    expect(identity.outsideUid).toBe(base + 65535);
  });
  it.each(["0", "root", "nobody", "4294967295", "01", "-1", "1e3", " 5"])("refuses run_as_user %j", (runAsUser) => {
    expect(() => resolveIdentity({ runAsUser, runAsGroup: "" }, ROOT, 0)).toThrow(/must be 'sandbox' or a numeric id/);
  });
  it("refuses to run without an allotted block", () => {
    for (const block of [undefined, -1, ID_BLOCKS, 0.5])
      expect(() => resolveIdentity(NONE, ROOT, block)).toThrow(/no block/);
  });
});

describe("resolveIdentity as a user", () => {
  it("has one id, inside and outside, and says that it is shared", () => {
    const identity = resolveIdentity(NONE, USER, undefined);
    expect(identity.plan).toEqual({
      uid: 1234,
      gid: 100,
      uidMap: [{ inside: 1234, outside: 1234, count: 1 }],
      gidMap: [{ inside: 100, outside: 100, count: 1 }],
      denySetgroups: true,
    });
    expect(identity.isolation.enforced).toBe(false);
  });
  it("accepts its own id in the policy and refuses another", () => {
    expect(resolveIdentity({ runAsUser: "1234", runAsGroup: "100" }, USER, undefined).plan.uid).toBe(1234);
    expect(() => resolveIdentity({ runAsUser: "1000", runAsGroup: "" }, USER, undefined)).toThrow(
      expect.objectContaining({
        code: "identity_refused",
        message: expect.stringMatching(/run_as_user 1000 is not available.* own id 1234; subordinate ids .* not used/),
        next: expect.stringContaining("'sandbox' or 1234, or run the gateway as root"),
      }),
    );
    expect(() => resolveIdentity({ runAsUser: "", runAsGroup: "5" }, USER, undefined)).toThrow(/run_as_group/);
  });
  it("never makes the agent root", () => {
    expect(() => resolveIdentity(NONE, { kind: "user", uid: 0, gid: 0 }, undefined)).toThrow(/uid or gid 0/);
  });
});

import { describe, expect, it } from "vitest";
import type { LaunchPlan } from "./plan.ts";
import { encodePlan } from "./plan-encode.ts";

const plan: LaunchPlan = {
  sandboxId: "sb",
  generation: 0x0102030405060708n,
  nonce: new Uint8Array(32).fill(0xab),
  controlFolder: "/run/c",
  controlSocket: "/run/c/s",
  identity: {
    uid: 1000,
    gid: 1001,
    uidMap: [{ inside: 0, outside: 100_000, count: 65_536 }],
    gidMap: [{ inside: 0, outside: 200_000, count: 65_536 }],
    denySetgroups: true,
  },
  hostname: "h",
  cgroupProcs: ["/c/cgroup.procs"],
  freezer: { kind: "v2", folder: "/c" },
  root: [
    { kind: "tmpfs", target: "/", mode: 0o755, sizeBytes: 4096n, noexec: true, owner: "root" },
    { kind: "directory", target: "/d", mode: 0o700, owner: "agent" },
    { kind: "file", target: "/f", mode: 0o644, content: Buffer.from("x") },
    { kind: "symlink", target: "/l", to: "t" },
    { kind: "bind", source: "/usr", target: "/usr", readOnly: true, recursive: true, optional: false, noexec: false },
    { kind: "volume", source: "/v", target: "/w", readOnly: false, idmap: { hostUid: 7, hostGid: 8 } },
    { kind: "proc", target: "/proc" },
    { kind: "dev", target: "/dev" },
    { kind: "seal", target: "/" },
  ],
  network: {
    mode: "sk_lookup",
    routes: [{ message: Uint8Array.of(1, 2), optional: true }],
    skLookup: { program: Uint8Array.of(9, 9, 9, 9, 9, 9, 9, 9), mapFixups: [0] },
    nft: undefined,
    ports: [],
  },
  orphanLimitMs: 30_000,
};

/** Text of hexadecimal bytes with their meaning behind `#`. */
const hex = (text: string): string =>
  text
    .split("\n")
    .map((line) => line.split("#")[0])
    .join("")
    .replace(/\s/g, "");

describe("encodePlan", () => {
  it("has exactly the layout that init reads", () => {
    expect(encodePlan(plan).toString("hex")).toBe(
      hex(`
        4f534850 01000000            # "OSHP", version
        02000000 7362 00             # sandbox id
        0807060504030201             # generation
        20000000 ${"ab".repeat(32)}  # nonce
        06000000 2f72756e2f63 00     # control folder
        08000000 2f72756e2f632f73 00 # control socket
        e8030000 e9030000            # uid, gid
        01000000 00000000 a0860100 00000100
        01000000 00000000 400d0300 00000100
        01                           # setgroups denied
        01000000 68 00               # hostname
        01000000 0f000000 2f632f6367726f75702e70726f6373 00
        02 02000000 2f63 00          # freezer v2
        17000000                     # steps
        01 01000000 2f 00 ed010000 0010000000000000 01 00
        02 02000000 2f64 00 c0010000 01
        03 02000000 2f66 00 a4010000 01000000 78
        04 02000000 2f6c 00 01000000 74 00
        05 04000000 2f757372 00 04000000 2f757372 00 01 01 00 00 00
        06 02000000 2f77 00 02000000 2f76 00 00 01 07000000 08000000
        07 05000000 2f70726f63 00
        01 04000000 2f646576 00 ed010000 0000010000000000 00 00   # /dev
        05 09000000 2f6465762f6e756c6c 00 09000000 2f6465762f6e756c6c 00 00 00 00 01 01
        05 09000000 2f6465762f7a65726f 00 09000000 2f6465762f7a65726f 00 00 00 00 01 01
        05 09000000 2f6465762f66756c6c 00 09000000 2f6465762f66756c6c 00 00 00 00 01 01
        05 0b000000 2f6465762f72616e646f6d 00 0b000000 2f6465762f72616e646f6d 00 00 00 00 01 01
        05 0c000000 2f6465762f7572616e646f6d 00 0c000000 2f6465762f7572616e646f6d 00 00 00 00 01 01
        05 08000000 2f6465762f747479 00 08000000 2f6465762f747479 00 00 00 00 01 01
        04 09000000 2f6465762f70746d78 00 08000000 7074732f70746d78 00
        04 07000000 2f6465762f6664 00 0d000000 2f70726f632f73656c662f6664 00
        04 0a000000 2f6465762f737464696e 00 0f000000 2f70726f632f73656c662f66642f30 00
        04 0b000000 2f6465762f7374646f7574 00 0f000000 2f70726f632f73656c662f66642f31 00
        04 0b000000 2f6465762f737464657272 00 0f000000 2f70726f632f73656c662f66642f32 00
        08 08000000 2f6465762f707473 00
        01 08000000 2f6465762f73686d 00 ff030000 0000001000000000 00 00
        09 04000000 2f646576 00
        09 01000000 2f 00
        01                           # sk_lookup
        01000000 01 02000000 0102    # routes
        08000000 0909090909090909    # program
        01000000 00000000            # map fix-ups
        00000000 00000000            # nft: acknowledgements, batch
        00000000                     # ports
        3075000000000000             # orphan limit
      `),
    );
  });

  it.each<[string, Partial<LaunchPlan>]>([
    ["a nonce of 32 bytes", { nonce: new Uint8Array(31) }],
    ["an agent that is not root", { identity: { ...plan.identity, uid: 0 } }],
    ["a map of ids", { identity: { ...plan.identity, uidMap: [] } }],
    ["a socket inside its folder", { controlSocket: "/elsewhere/s" }],
    ["a socket path that fits an address", { controlFolder: "/r", controlSocket: `/r/${"x".repeat(100)}` }],
    ["a tmpfs as root", { root: plan.root.slice(1) }],
    ["absolute targets", { root: [plan.root[0]!, { kind: "proc", target: "proc" }] }],
    ["at most 512 steps", { root: Array.from({ length: 513 }, () => plan.root[0]!) }],
    ["a program for sk_lookup", { network: { ...plan.network, skLookup: undefined } }],
    ["a batch for nft", { network: { ...plan.network, mode: "nft" } }],
    ["ports for listeners", { network: { ...plan.network, mode: "listener_per_port" } }],
  ])("demands %s", (_, change) => {
    expect(() => encodePlan({ ...plan, ...change })).toThrow(
      expect.objectContaining({ code: "launch_plan_invalid" }) as Error,
    );
  });

  it("writes an overlay as mount options with relative parts, and the sandbox's own id map", () => {
    const root: LaunchPlan["root"] = [
      plan.root[0]!,
      { kind: "volume", source: "/i", target: "/image", readOnly: true, idmap: "sandbox" },
      { kind: "overlay", target: "/root", lower: ["/seed", "/image"], upper: "/own/upper", work: "/own/work" },
    ];
    const bytes = encodePlan({ ...plan, root }).toString("hex");
    const options = "userxattr,lowerdir=seed:image,upperdir=own/upper,workdir=own/work";
    expect(bytes).toContain(hex("06 06000000 2f696d616765 00 02000000 2f69 00 01 02 00000000 00000000"));
    expect(bytes).toContain(
      hex(`0a 05000000 2f726f6f74 00 ${options.length.toString(16)}000000 ${Buffer.from(options).toString("hex")} 00`),
    );
  });

  it.each(["/a,upperdir=x", "/a:b", "/a\\b", "relative", "/a/../b", "/"])(
    "refuses %j as a part of an overlay",
    (part) => {
      const overlay = { kind: "overlay", target: "/root", lower: [part], upper: "/u", work: "/w" } as const;
      expect(() => encodePlan({ ...plan, root: [plan.root[0]!, overlay] })).toThrow(/cannot be a part of an overlay/);
    },
  );

  it("refuses a zero byte in any string, which C would take for its end", () => {
    expect(() => encodePlan({ ...plan, hostname: "a\0b" })).toThrow(/zero byte/);
  });
});

import { describe, expect, it } from "vitest";
import type { VolumeRequest } from "../driver.ts";
import { memoryHost } from "./testing.ts";
import { MAX_VOLUMES, parseVolume, planVolumes, type VolumeRules } from "./volumes.ts";

const HOST = memoryHost(
  {
    "/home/me/repo/.git/hooks/pre-commit": "file",
    "/home/me/repo/.git/config": "file",
    "/home/me/repo/.bashrc": "file",
    "/home/me/repo/.vscode": "dir",
    "/home/me/repo/.zshrc": "-> elsewhere",
    "/home/me/repo/api.sock": "other",
    "/home/me/worktree/.git": "file",
    "/home/me/plain": "dir",
    "/home/me/file.txt": "file",
    "/home/me/link": "-> repo",
    "/home/me/.config/openshell": "dir",
    "/srv/shared/data": "dir",
    "/var/lib/openshell/local/sandboxes": "dir",
    "/run/docker.sock": "other",
    "/tmp/x": "dir",
  },
  ["/home/me/repo/api.sock", "/home/me/gone.sock", "/run/docker.sock"],
);
const RULES: VolumeRules = {
  caller: { uid: 0, gid: 0 },
  gatewayUid: 0,
  volumeRoots: ["/srv/shared"],
  privateFolders: ["/var/lib/openshell/local", "/home/me/.config/openshell"],
  idmap: true,
};

function volume(source: string, target: string, access: VolumeRequest["access"] = "rw"): VolumeRequest {
  return { source, target, access };
}
function plan(request: VolumeRequest | readonly VolumeRequest[], rules: Partial<VolumeRules> = {}) {
  return planVolumes([request].flat(), { ...RULES, ...rules }, { files: HOST });
}

describe("parseVolume", () => {
  it("reads SRC:DST with an access and resolves a relative source", () => {
    expect(parseVolume("/a:/b", "/cwd")).toEqual(volume("/a", "/b"));
    expect(parseVolume(".:/b:ro", "/cwd")).toEqual(volume("/cwd", "/b", "ro"));
    expect(parseVolume("../x:/b:rw-all", "/cwd/y")).toEqual(volume("/cwd/x", "/b", "rw-all"));
  });
  it.each(["", "/a", "/a:", ":/b", "/a:/b:rx", "/a:/b:ro:z"])("refuses %j", (text) => {
    expect(() => parseVolume(text, "/")).toThrow(/volume/);
  });
});

describe("planVolumes", () => {
  it("mounts with the caller's ids where ids can be mapped, plainly elsewhere", () => {
    expect(plan(volume("/home/me/plain", "/sandbox/p", "ro")).steps).toEqual([
      {
        kind: "volume",
        source: "/home/me/plain",
        target: "/sandbox/p",
        readOnly: true,
        idmap: { hostUid: 0, hostGid: 0 },
      },
    ]);
    const steps = plan(volume("/home/me/plain", "/w"), { idmap: false }).steps;
    expect(steps).toEqual([
      { kind: "volume", source: "/home/me/plain", target: "/w", readOnly: false, idmap: undefined },
    ]);
  });
  it("names the paths that the filesystem rules must open", () => {
    const planned = plan([volume("/home/me/plain", "/a"), volume("/home/me/file.txt", "/b", "ro")]);
    expect(planned).toMatchObject({ readWritePaths: ["/a"], readOnlyPaths: ["/b"] });
  });
  it("makes parents below the home the agent's own", () => {
    expect(plan(volume("/home/me/plain", "/sandbox/a/b/c")).steps.slice(0, 2)).toEqual([
      { kind: "directory", target: "/sandbox/a", mode: 0o755, owner: "agent" },
      { kind: "directory", target: "/sandbox/a/b", mode: 0o755, owner: "agent" },
    ]);
  });
  it("keeps git hooks, git configuration and start-up files read-only, and .git from being renamed away", () => {
    const mounts = plan(volume("/home/me/repo", "/r")).steps.flatMap((step) =>
      step.kind === "volume" ? [[step.target, step.readOnly]] : [],
    );
    expect(mounts).toEqual([
      ["/r", false],
      ["/r/.ssh", true],
      ["/r/.bashrc", true],
      ["/r/.git", false],
      ["/r/.git/hooks", true],
      ["/r/.git/config", true],
      ["/r/.vscode", true],
    ]);
  });
  it("keeps a worktree's .git file read-only", () => {
    expect(plan(volume("/home/me/worktree", "/r")).steps.at(-1)).toMatchObject({ target: "/r/.git", readOnly: true });
  });
  it("guards nothing in rw-all and ro volumes", () => {
    for (const access of ["rw-all", "ro"] as const) {
      const steps = plan(volume("/home/me/repo", "/r", access)).steps;
      expect(steps.filter((step) => step.kind === "volume")).toHaveLength(1);
    }
  });
  it("covers sockets of running services, in every access", () => {
    for (const access of ["rw", "ro", "rw-all"] as const) {
      expect(plan(volume("/home/me/repo", "/r", access)).steps.at(-1)).toMatchObject({
        kind: "bind",
        source: "/dev/null",
        target: "/r/api.sock",
      });
    }
  });
  it("lets only the gateway's own user mount, others below volume_roots", () => {
    for (const caller of [undefined, { uid: 1000, gid: 1000 }]) {
      expect(() => plan(volume("/home/me/plain", "/w"), { caller })).toThrow(/may not mount/);
      expect(plan(volume("/srv/shared/data", "/w"), { caller }).readWritePaths).toEqual(["/w"]);
    }
  });
  it("keeps start-up files from those callers, and gives them the ids of the folder's owner, never root's", () => {
    const caller = undefined;
    expect(() => plan(volume("/srv/shared/data", "/w", "rw-all"), { caller })).toThrow(/may not open start-up files/);
    const owned = { "/srv/shared/data": { uid: 1234, gid: 99 } };
    const host = (owners = {}) => memoryHost({ "/srv/shared/data": "dir" }, [], {}, owners);
    const idmapOf = (files: ReturnType<typeof memoryHost>) => {
      const step = planVolumes([volume("/srv/shared/data", "/w")], { ...RULES, caller }, { files }).steps[0];
      return step?.kind === "volume" ? step.idmap : "none";
    };
    expect(idmapOf(host(owned))).toEqual({ hostUid: 1234, hostGid: 99 });
    expect(idmapOf(host({ "/srv/shared/data": { uid: 0, gid: 0 } }))).toBeUndefined();
  });
  it("takes volume_roots that are links for what they lead to", () => {
    const files = memoryHost({ "/data": "-> /disk2/data", "/disk2/data/x": "dir" });
    const rules = { ...RULES, caller: undefined, volumeRoots: ["/data"] };
    expect(planVolumes([volume("/disk2/data/x", "/w")], rules, { files }).readWritePaths).toEqual(["/w"]);
    expect(() => planVolumes([volume("/data/x", "/w")], rules, { files })).toThrow(/may not mount|symbolic link/);
  });
  it("refuses git's own files and start-up files as writable volumes", () => {
    for (const source of [
      "/home/me/repo/.git",
      "/home/me/repo/.git/hooks",
      "/home/me/repo/.bashrc",
      "/home/me/repo/.vscode",
    ]) {
      expect(() => plan(volume(source, "/w"))).toThrow(/programs run from/);
      for (const access of ["ro", "rw-all"] as const) expect(plan(volume(source, "/w", access)).steps).toHaveLength(1);
    }
  });
  it("takes any name that files may have: other scripts, spaces, 255 bytes", () => {
    for (const name of ["данные 数据 🗂", "a b", "é".repeat(127)]) {
      const files = memoryHost({ [`/home/me/${name}`]: "dir" });
      const planned = planVolumes([volume(`/home/me/${name}`, `/w/${name}`)], RULES, { files });
      expect(planned.readWritePaths).toEqual([`/w/${name}`]);
    }
  });
  it.each([`/w/${"é".repeat(128)}`, "/w/\ud800x", `/${"a/".repeat(600)}b`, "/w/\u007f"])(
    "refuses a name that none can have: %j",
    (name) => {
      expect(() => plan(volume("/home/me/plain", name))).toThrow(/volume/);
      expect(() => plan(volume(name, "/w"))).toThrow(/volume/);
    },
  );
  it.each([
    "/var/lib/openshell/local",
    "/var/lib/openshell/local/sandboxes",
    "/var/lib",
    "/home/me",
    "/home/me/.config",
  ])("refuses the gateway's own folders and whatever contains them: %s", (source) =>
    expect(() => plan(volume(source, "/w"))).toThrow(/files of the gateway/),
  );
  it("knows the gateway's folders behind a link of theirs as well", () => {
    const rules = { ...RULES, privateFolders: ["/home/alias/state"] };
    const host = memoryHost({ "/home/alias": "-> /data/me", "/data/me/state/keys": "dir", "/data/me/other": "dir" });
    for (const source of ["/data/me/state", "/data/me/state/keys", "/data/me", "/data"]) {
      expect(() => planVolumes([volume(source, "/w")], rules, { files: host })).toThrow(/files of the gateway/);
    }
    expect(planVolumes([volume("/data/me/other", "/w")], rules, { files: host }).readWritePaths).toEqual(["/w"]);
  });
  it("refuses interfaces of the kernel wherever they are mounted", () => {
    const host = memoryHost({ "/mnt/x": "dir" }, [], { "/mnt/x": "cgroup2" });
    expect(() => planVolumes([volume("/mnt/x", "/w")], RULES, { files: host })).toThrow(/interface of the kernel/);
  });
  it.each(["/", "/run", "/run/docker.sock", "/proc/1", "/dev", "/sys/fs"])("refuses %s", (source) => {
    expect(() => plan(volume(source, "/w"))).toThrow(/refuse|holds|gateway/);
  });
  it("refuses links, sockets and what does not exist, naming the way out", () => {
    expect(() => plan(volume("/home/me/link", "/w"))).toThrow(/symbolic link/);
    expect(() => plan(volume("/home/me/link/.vscode", "/w"))).toThrow(/symbolic link/);
    expect(() => plan(volume("/home/me/repo/api.sock", "/w"))).toThrow(/socket, device or pipe/);
    expect(() => plan(volume("/home/me/none", "/w"))).toThrow(/does not exist/);
  });
  it.each([
    "/",
    "w",
    "/a/../b",
    "/a//b",
    "/a/",
    "/usr/local/x",
    "/etc",
    "/etc/openshell-tls",
    "/proc/x",
    "/sandbox",
    "/tmp",
    "/run/x",
    "/a:b",
    "/a\nb",
  ])("refuses the target %j", (target) => expect(() => plan(volume("/home/me/plain", target))).toThrow(/volume/));
  it("refuses targets that overlap and more than the limit", () => {
    expect(() => plan([volume("/home/me/plain", "/a"), volume("/tmp/x", "/a")])).toThrow(/overlaps/);
    expect(() => plan([volume("/home/me/plain", "/a"), volume("/tmp/x", "/a/b")])).toThrow(/overlaps/);
    const many = Array.from({ length: MAX_VOLUMES + 1 }, (_, i) => volume("/home/me/plain", `/v${i}`));
    expect(() => plan(many)).toThrow(/exceed/);
  });
  it("shows control characters of a path instead of printing them", () => {
    expect(() => plan(volume("/home/me/\u001b[31m", "/w"))).toThrow(/\\\\x1b/);
  });
});

import { describe, expect, it } from "vitest";
import { ETC_ENTRIES, planRoot, visibleInside } from "./root-view.ts";
import { memoryHost } from "./testing.ts";

const DEBIAN = memoryHost({
  "/usr/bin/git": "file",
  "/usr/bin/java": "-> /etc/alternatives/java",
  "/usr/lib/jvm/bin/java": "file",
  "/usr/lib/os-release": "file",
  "/usr/share/zoneinfo/UTC": "file",
  "/usr/local/bin/tool": "-> /opt/tool/bin/tool",
  "/opt/tool/bin/tool": "file",
  "/bin": "-> usr/bin",
  "/sbin": "-> /srv/evil",
  "/srv/evil": "dir",
  "/lib64": "dir",
  "/etc/alternatives/java": "-> /usr/lib/jvm/bin/java",
  "/etc/java-17-openjdk/security": "dir",
  "/etc/javascript-common/x": "file",
  "/etc/localtime": "-> ../usr/share/zoneinfo/UTC",
  "/etc/os-release": "-> ../usr/lib/os-release",
  "/etc/ssl/certs/a.pem": "file",
  "/etc/ssl/certs/ca-certificates.crt": "file",
  "/etc/ssl/certs/java/cacerts": "file",
  "/etc/ssl/cert.pem": "-> certs/ca-certificates.crt",
  "/etc/ssl/private/key.pem": "file",
  "/etc/services": "file",
  "/etc/protocols": "-> /srv/protocols",
  "/srv/protocols": "file",
  "/etc/rpc": "-> /nowhere",
  "/etc/shadow": "file",
  "/etc/npmrc": "file",
  "/proc/keys": "file",
  "/root/.ssh/id": "file",
  "/home/me/x": "file",
});

const INPUT = {
  uid: 1000,
  gid: 1000,
  hostname: "one",
  shell: "/bin/bash",
  trustFolder: "/state/sandboxes/x/trust",
  homeFolder: "/state/sandboxes/x/home",
  tmpBytes: 1n << 30n,
  ownFolders: [],
  volumes: [],
};

function content(target: string, input = INPUT): string {
  const step = planRoot(input, DEBIAN).find((candidate) => candidate.target === target);
  return step?.kind === "file" ? new TextDecoder().decode(step.content) : "";
}

describe("planRoot", () => {
  const steps = planRoot(INPUT, DEBIAN);
  const at = (target: string) => steps.find((step) => step.target === target);

  it("begins with an own tmpfs and ends by sealing it", () => {
    expect(steps[0]).toMatchObject({ kind: "tmpfs", target: "/" });
    expect(steps.at(-1)).toEqual({ kind: "seal", target: "/" });
  });
  it("binds nothing of the host writable, and nothing but the home from outside the lists", () => {
    const sources = steps.flatMap((step) => (step.kind === "bind" && step.source !== "/dev/null" ? [step] : []));
    for (const step of sources) expect([step.source, step.readOnly]).toEqual([step.source, true]);
    expect(sources.map((step) => step.source).sort()).toEqual([
      "/etc/alternatives",
      "/etc/java-17-openjdk",
      "/etc/services",
      "/etc/ssl/certs",
      "/lib64",
      "/srv/protocols",
      "/usr",
    ]);
    const own = steps.flatMap((step) => (step.kind === "volume" ? [[step.source, step.target, step.readOnly]] : []));
    expect(own).toEqual([
      ["/state/sandboxes/x/home", "/sandbox", false],
      ["/state/sandboxes/x/trust", "/etc/openshell-tls", true],
      ["/state/sandboxes/x/trust/ca-bundle.pem", "/etc/ssl/certs/ca-certificates.crt", true],
      ["/state/sandboxes/x/trust/cacerts.jks", "/etc/ssl/certs/java/cacerts", true],
    ]);
  });
  it("keeps the links of a merged /usr and drops one that leads elsewhere", () => {
    expect(at("/bin")).toEqual({ kind: "symlink", target: "/bin", to: "usr/bin" });
    expect(at("/sbin")).toBeUndefined();
  });
  it("keeps links into /usr, binds what others lead to, skips dangling ones", () => {
    expect(at("/etc/localtime")).toMatchObject({ kind: "symlink", to: "/usr/share/zoneinfo/UTC" });
    expect(at("/etc/ssl/cert.pem")).toMatchObject({ kind: "symlink", to: "/etc/ssl/certs/ca-certificates.crt" });
    expect(at("/etc/protocols")).toMatchObject({ kind: "bind", source: "/srv/protocols" });
    expect(at("/etc/rpc")).toBeUndefined();
  });
  it("names no file of accounts, keys or client settings in its list", () => {
    const forbidden =
      /^(shadow|gshadow|passwd|group|ssh|sudoers|ssl\/private|npmrc|pip\.conf|gitconfig|environment|machine-id|profile|krb5)/;
    for (const entry of ETC_ENTRIES) expect(entry).not.toMatch(forbidden);
    for (const prefix of ETC_ENTRIES.filter((entry) => entry.endsWith("*"))) {
      for (const secret of ["shadow", "passwd", "ssh", "sudoers", "npmrc", "pip.conf"]) {
        expect(secret.startsWith(prefix.slice(0, -1))).toBe(false);
      }
    }
  });
  it("writes accounts without passwords, and one line an id", () => {
    expect(content("/etc/passwd")).toBe(
      "root:x:0:0:root:/root:/usr/sbin/nologin\nsandbox:x:1000:1000::/sandbox:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    );
    expect(content("/etc/passwd", { ...INPUT, uid: 65534 })).not.toContain("nobody");
    expect(content("/etc/group", { ...INPUT, gid: 5 })).toBe("root:x:0:\nsandbox:x:5:\nnogroup:x:65534:\n");
  });
  it("resolves names at the sandbox's own DNS only", () => {
    expect(content("/etc/resolv.conf")).toBe("nameserver 127.0.0.1\n");
    expect(content("/etc/hosts")).toContain("127.0.1.1 one\n");
  });
  it("covers what /proc says of the whole machine, after it is mounted", () => {
    const proc = steps.findIndex((step) => step.kind === "proc");
    const masks = steps.filter((step) => step.kind === "bind" && step.source === "/dev/null");
    expect(masks.map((step) => step.target)).toEqual(["/proc/keys"]);
    expect(steps.indexOf(masks[0]!)).toBeGreaterThan(proc);
  });
  it("carries out volumes after everything else", () => {
    const volume = { kind: "directory", target: "/v", mode: 0o755, owner: "agent" } as const;
    const planned = planRoot({ ...INPUT, volumes: [volume] }, DEBIAN);
    expect(planned.at(-2)).toBe(volume);
  });
});

describe("visibleInside", () => {
  it.each([
    ["/usr/bin/git", true],
    ["/bin/git", true],
    ["/usr/bin/java", true],
    ["/usr/local/bin/tool", false],
    ["/opt/tool/bin/tool", false],
    ["/home/me/x", false],
    ["/etc/ssl/certs/a.pem", true],
    ["/etc/ssl/private/key.pem", false],
    ["/etc/shadow", false],
    ["/usr/bin/absent", false],
    ["/usrx", false],
  ])("%s: %s", (path, visible) => {
    expect(visibleInside(path, [], DEBIAN)).toBe(visible);
  });
  it("counts volumes", () => {
    expect(visibleInside("/opt/tool/bin/tool", ["/opt/tool"], DEBIAN)).toBe(true);
    expect(visibleInside("/usr/local/bin/tool", ["/opt/tool"], DEBIAN)).toBe(true);
  });
});

import { execFileSync, spawnSync } from "node:child_process";
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { SandboxPhase } from "@openshell/api";
import { end, entry } from "@openshell/drivers/local/image/testing.ts";
import { afterAll, beforeAll, expect } from "vitest";
import { SCOPE } from "../support/api.ts";
import { attack, compile, type Lab, openLab, PYTHON } from "../support/attack.ts";
import { makeRootFs, packRootFs } from "../support/root-fs.ts";

/** Out by an image: what a hostile root file system holds in the places that the sandbox is built on. */

/** Prints what a set-user-id program of the image gets. */
const WHO = `#include <stdio.h>
#include <unistd.h>
int main(void) { printf("euid %s\\n", geteuid() == 0 || setuid(0) == 0 ? "root" : "agent"); return 0; }`;

/** Tries to write what overlayfs believes of a layer. */
const MARKS = `#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
int main(void) {
  mkdir("/srv/data/d", 0755);
  const char *names[] = {"user.overlay.redirect", "trusted.overlay.redirect", "user.overlay.metacopy", "trusted.overlay.opaque"};
  for (int i = 0; i < 4; i++)
    printf("%s %s\\n", names[i], setxattr("/srv/data/d", names[i], "/../../../../../../etc", 22, 0) == 0 ? "SET" : "refused");
  printf("whiteout %s\\n", mknod("/srv/data/w", S_IFCHR, makedev(0, 0)) == 0 ? "MADE" : "refused");
  printf("device %s\\n", mknod("/srv/data/m", S_IFCHR | 0666, makedev(1, 1)) == 0 ? "MADE" : "refused");
  return 0;
}`;

const POLICY = `
version: 1
filesystem_policy:
  include_workdir: true
  read_only: [/usr, /lib, /proc, /etc, /srv, /planted]
  read_write: [/sandbox, /tmp, /dev/null, /srv/data, /usr/bin]
`;

let folder: string;
let root: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "image-"));
  chmodSync(folder, 0o755);
  root = join(folder, "good");
  makeRootFs(root);
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

openLab({});

/** A copy of the good root with something planted. */
function planted(name: string, plant: (root: string) => void): string {
  const copy = join(folder, name);
  execFileSync("cp", ["-a", root, copy]);
  plant(copy);
  return copy;
}

const inRoot = (lab: Lab, image: string) => lab.create({ root: image, policy: POLICY });

attack(
  "links to the owner's folder in place of /etc, /proc, /dev, /tmp, /run and the home",
  "the folder is as it was, and inside nothing of it is there",
  { root: "real folders inside", user: "real folders inside" },
  async (lab) => {
    const image = planted("links", (at) => {
      for (const name of ["proc", "dev", "tmp", "run", "sandbox"]) {
        rmSync(join(at, name), { recursive: true, force: true });
        symlinkSync(lab.witness.folder, join(at, name));
      }
      // A folder within /etc, and the files that are written there.
      rmSync(join(at, "etc/passwd"));
      symlinkSync(lab.witness.canary, join(at, "etc/passwd"));
      symlinkSync(lab.witness.canary, join(at, "etc/resolv.conf"));
      symlinkSync(lab.witness.folder, join(at, "etc/openshell-tls"));
      mkdirSync(join(at, "etc/ssl/certs"), { recursive: true });
      symlinkSync(`../../../../../..${lab.witness.canary}`, join(at, "etc/ssl/certs/ca-certificates.crt"));
    });
    await using box = await inRoot(lab, image);
    const { stdout } = await box.sh(
      "for f in /etc /proc /dev /tmp /run /sandbox; do test -L $f && echo $f; done; cat /etc/resolv.conf /etc/passwd; ls /tmp /etc/openshell-tls; echo x > /tmp/canary; echo x > ~/canary",
    );
    expect(stdout).toMatch(/^nameserver 127\.0\.0\.1\n/);
    expect(stdout).not.toContain(lab.witness.secret);
    expect(stdout).toContain("ca-bundle.pem");
  },
);

attack(
  "a link in place of /etc itself",
  "the owner's folder is as it was",
  { root: "a folder inside", user: "a folder inside" },
  async (lab) => {
    const image = planted("etc-link", (at) => {
      rmSync(join(at, "etc"), { recursive: true });
      symlinkSync(lab.witness.folder, join(at, "etc"));
    });
    await using box = await inRoot(lab, image);
    expect((await box.sh("cat /etc/hostname; cat /etc/canary")).stdout).toBe(`${box.name}\n`);
  },
);

attack(
  "pipes and a socket in place of the files that a start reads and writes",
  "the start waits for none of them",
  { root: "files inside", user: "files inside" },
  async (lab) => {
    const image = planted("pipes", (at) => {
      rmSync(join(at, "etc/passwd"));
      rmSync(join(at, "etc/group"));
      mkdirSync(join(at, "etc/ssl/certs"), { recursive: true });
      for (const name of ["passwd", "group", "resolv.conf", "hosts", "hostname", "ssl/certs/ca-certificates.crt"])
        execFileSync("mkfifo", [join(at, "etc", name)]);
    });
    await using box = await inRoot(lab, image);
    const { stdout } = await box.sh(
      "for f in passwd group resolv.conf hosts hostname; do test -f /etc/$f && echo $f; done; id -un",
    );
    expect(stdout).toBe("passwd\ngroup\nresolv.conf\nhosts\nhostname\nsandbox\n");
  },
);

attack(
  "run a set-user-id program of the image's root",
  "its process has the agent's id and no capability",
  { root: "agent", user: "agent" },
  async (lab, expected) => {
    const image = planted("setuid", (at) => {
      compile(join(at, "planted"), "who", WHO);
      chmodSync(join(at, "planted"), 0o755);
      chmodSync(join(at, "planted/who"), 0o6755);
    });
    const archive = join(folder, "setuid.tar");
    packRootFs(image, archive);
    for (const from of [image, archive]) {
      await using box = await inRoot(lab, from);
      expect((await box.exec(["/planted/who"])).stdout).toBe(`euid ${expected}\n`);
    }
  },
);

attack(
  "open a device that the image holds",
  "no device of the machine is opened",
  { root: "permission denied", user: "as root" },
  async (lab) => {
    const image = planted("device", (at) => {
      mkdirSync(join(at, "planted"), { mode: 0o755 });
      chmodSync(join(at, "planted"), 0o755);
      execFileSync("mknod", ["-m", "666", join(at, "planted/zero"), "c", "1", "5"]);
      execFileSync("mknod", ["-m", "666", join(at, "planted/mem"), "c", "1", "1"]);
    });
    await using box = await inRoot(lab, image);
    const { stdout, stderr } = await box.sh("head -c 1 /planted/zero; head -c 1 /planted/mem; echo end");
    expect(stdout).toBe("end\n");
    expect(stderr.match(/Permission denied/g)).toHaveLength(2);
  },
);

attack(
  "write what overlayfs believes of a layer: redirects, metadata copies, whiteouts, devices",
  "no layer believes it, and after a restart none leads anywhere else",
  { root: "refused", user: "refused" },
  async (lab, expected) => {
    const image = planted("marks", (at) => {
      compile(join(at, "planted"), "marks", MARKS);
      chmodSync(join(at, "planted"), 0o755);
    });
    await using box = await inRoot(lab, image);
    const outcomes = (await box.exec(["/planted/marks"])).stdout.trim().split("\n");
    expect(outcomes).toHaveLength(6);
    // Newer kernels take names of `user.overlay.`, and write them under others that mean nothing to them.
    expect(outcomes.filter((line) => !line.startsWith("user.")).map((line) => line.split(" ").at(-1))).toEqual(
      Array(4).fill(expected),
    );
    const upper = join(lab.gateway.folders.state, "sandboxes", box.id, "overlay/upper/srv/data/d");
    const onDisk = execFileSync(PYTHON, ["-c", "import os, sys; print(*os.listxattr(sys.argv[1]))", upper], {
      encoding: "utf8",
    });
    expect(onDisk.split(/\s+/).filter((name) => /^\w+\.overlay\.(redirect|metacopy|opaque)$/.test(name))).toEqual([]);
    const { client } = lab.gateway;
    await client.stopSandbox({ workspaceScope: SCOPE, name: box.name });
    await box.phase(SandboxPhase.STOPPED);
    await client.startSandbox({ workspaceScope: SCOPE, name: box.name });
    await box.phase(SandboxPhase.READY);
    expect((await box.sh("ls /srv/data /srv/data/d")).stdout).toBe("/srv/data:\nd\n\n/srv/data/d:\n");
  },
);

attack(
  "change, remove and replace files of the image",
  "the folder, and the next sandbox on it, are as before",
  { root: "a layer of its own", user: "a layer of its own" },
  async (lab) => {
    const image = planted("shared", () => {});
    const before = treeOf(image);
    {
      await using box = await inRoot(lab, image);
      const { stdout } = await box.sh(
        "echo x >> /usr/bin/cat; mv /usr/bin/ls /usr/bin/ls2; rm -f /usr/bin/id; chmod 777 /usr/bin/env; ln -sf /x /usr/bin/sleep; test -e /usr/bin/id || echo removed",
      );
      // Whether the agent may is the image's owners' and the policy's matter.
      expect(stdout).toBe("removed\n");
      expect(treeOf(image)).toEqual(before);
    }
    await using next = await inRoot(lab, image);
    expect((await next.sh("ls /usr/bin/id")).stdout).toBe("/usr/bin/id\n");
  },
);

attack(
  "archives that lead out: links, hard links, absolute names, parents, a name through a link",
  "nothing is written or linked outside, and nothing of the archive stays",
  { root: "refused", user: "refused" },
  async (lab) => {
    const { folder: outside, canary } = lab.witness;
    const hostile = [
      [entry({ name: "l", type: "2", link: outside }), entry({ name: "l/planted", content: "x" })],
      [entry({ name: "l", type: "2", link: outside }), entry({ name: "h", type: "1", link: "l/canary" })],
      [entry({ name: "h", type: "1", link: canary })],
      [entry({ name: `${outside}/planted`, content: "x" })],
      [entry({ name: `${"../".repeat(20)}${outside.slice(1)}/planted`, content: "x" })],
      [entry({ name: "h", type: "1", link: `${"../".repeat(20)}${canary.slice(1)}` })],
      [entry({ name: "d/", type: "5" }), entry({ name: "d", type: "2", link: outside }), entry({ name: "d/planted" })],
    ];
    for (const [index, parts] of hostile.entries()) {
      const archive = join(folder, `hostile${index}.tar`);
      writeFileSync(archive, Buffer.concat([...parts, end()]));
      await expect(lab.gateway.create({ root: archive }), archive).rejects.toThrow(
        /StartFailed the archive cannot be used/,
      );
    }
    expect(readdirSync(outside)).toEqual(["canary"]);
    expect(lstatSync(canary).nlink).toBe(1);
  },
);

attack(
  "an archive of twenty thousand names",
  "the gateway answers others meanwhile",
  { root: "unpacked aside", user: "as root" },
  async (lab) => {
    const archive = join(folder, "many.tar");
    const names = Array.from({ length: 20_000 }, (_, index) => entry({ name: `d${index % 50}/f${index}` }));
    writeFileSync(archive, Buffer.concat([...names, end()]));
    const unpacked = lab.gateway.create({ root: archive });
    const waits: number[] = [];
    let done = false;
    void unpacked
      .catch(() => {})
      .finally(() => {
        done = true;
      });
    while (!done) {
      const at = performance.now();
      await lab.box.get();
      waits.push(performance.now() - at);
    }
    // It has no program that could be the main process.
    await expect(unpacked).rejects.toThrow(/MainProcess|StartFailed|ENOENT/);
    waits.sort((a, b) => a - b);
    expect(waits[Math.floor(waits.length / 2)]).toBeLessThan(250);
  },
);

attack(
  "name the gateway's own folders, the kernel's and the whole machine as a root",
  "none becomes a root",
  { root: "refused", user: "refused" },
  async (lab) => {
    const { state } = lab.gateway.folders;
    for (const source of [
      "/",
      "/proc",
      "/proc/self/root",
      "/sys",
      "/dev",
      "/run",
      state,
      join(state, "sandboxes", lab.box.id, "home"),
      join(state, ".."),
    ]) {
      await expect(lab.gateway.create({ root: source }), source).rejects.toThrow(
        /holds|symbolic link|interface of the kernel|does not exist/,
      );
    }
  },
);

/** Names, modes, sizes and owners below a folder. */
function treeOf(at: string): string {
  expect(existsSync(at)).toBe(true);
  return String(spawnSync("find", [at, "-printf", "%P %m %U %G %s %n %T@ %l\\n"]).stdout);
}

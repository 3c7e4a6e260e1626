import {
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, expect } from "vitest";
import { attack, expectOutcomes, type Lab, openAttack, openLab } from "../support/attack.ts";

/** Out by files: the owner's folders that are mounted, what the owner later runs from them, sockets, links, races. */

const folders: string[] = [];
afterAll(() => {
  for (const folder of folders) rmSync(folder, { recursive: true, force: true });
});

/** A folder of the owner's, to be mounted. */
function ownersFolder(files: Readonly<Record<string, string>> = {}): string {
  const folder = mkdtempSync(join(tmpdir(), "vol-"));
  folders.push(folder);
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(join(folder, name, ".."), { recursive: true });
    writeFileSync(join(folder, name), text);
  }
  return folder;
}

openLab({
  c: { kernel: readFileSync(join(import.meta.dirname, "programs/kernel.c"), "utf8") },
});

/** A repository as `git init` makes it, optionally without its hooks folder. */
async function repository(internet: Lab["net"], folder: string, hooks = true): Promise<void> {
  const script = `git init -q . && git -c user.name=a -c user.email=a@example.com commit -q --allow-empty -m one && echo text > file && git add file`;
  const { exitCode, stderr } = await internet.run(["sh", "-c", script], { cwd: folder });
  expect({ exitCode, stderr }).toEqual({ exitCode: 0, stderr: "" });
  if (!hooks) rmSync(join(folder, ".git/hooks"), { recursive: true, force: true });
}

/** What the owner does next in the repository; whatever the agent planted would run now. */
const OWNERS_GIT =
  "git status; git diff; git log -1; git -c user.name=a -c user.email=a@example.com commit -q --allow-empty -m two; git checkout -q -b other; git stash list; git gc -q; git ls-files; true";

/** Makes the agent plant a program in every place that git runs from; returns whether the owner's git ran it. */
async function plantAndRun(lab: Lab, folder: string, plant: string): Promise<boolean> {
  const proof = join(folder, "agent-code-ran-outside");
  await using box = await lab.create({ volumes: [`${folder}:/sandbox/work`] });
  await box.sh(
    `cd /sandbox/work; printf '#!/bin/sh\\ntouch "${proof}"\\n' > payload; chmod 755 payload; ${plant}; true`,
  );
  const leftovers = await lab.net.run(["sh", "-c", OWNERS_GIT], { cwd: folder, timeoutMs: 20_000 });
  expect(leftovers.timedOut).toBe(false);
  return existsSync(proof);
}

const HOOKS = `mkdir -p .git/hooks; for h in pre-commit post-commit post-checkout reference-transaction post-index-change pre-auto-gc; do cp payload .git/hooks/$h; done`;

attack(
  "plant git hooks in a mounted repository",
  "the owner's next git commands run no code of the agent",
  { root: "no code ran", user: "no code ran" },
  async (lab) => {
    const folder = ownersFolder();
    await repository(lab.net, folder);
    expect(await plantAndRun(lab, folder, HOOKS)).toBe(false);
  },
);

attack(
  "plant git hooks in a mounted repository that has no hooks folder yet",
  "the owner's next git commands run no code of the agent",
  { root: "no code ran", user: "no code ran" },
  async (lab) => {
    const folder = ownersFolder();
    await repository(lab.net, folder, false);
    expect(await plantAndRun(lab, folder, HOOKS)).toBe(false);
  },
);

attack(
  "change a mounted repository's git configuration: write, replace, rename, move .git away",
  "configuration and hooks outside are byte for byte what they were; git runs no code of the agent",
  { root: "no code ran", user: "no code ran" },
  async (lab) => {
    const folder = ownersFolder();
    await repository(lab.net, folder);
    const config = readFileSync(join(folder, ".git/config"), "utf8");
    const evil =
      "[core]\\n\\tfsmonitor = /bin/sh -c './payload'\\n\\thooksPath = ..\\n[alias]\\n\\tstatus = !./payload\\n";
    const plant = `git config core.fsmonitor ./payload; printf "${evil}" > .git/config; printf "${evil}" > c; mv c .git/config; cp c .git/config; rm .git/config; ln -sf /sandbox/work/c .git/config; mv .git/config .git/old; ln .git/config .git/linked && echo x >> .git/linked; mv .git g && mkdir .git && cp -r g/* .git && printf "${evil}" > .git/config; chmod 777 .git/config; truncate -s 0 .git/config`;
    expect(await plantAndRun(lab, folder, plant)).toBe(false);
    expect(readFileSync(join(folder, ".git/config"), "utf8")).toBe(config);
    expect(lstatSync(join(folder, ".git")).isDirectory()).toBe(true);
  },
);

attack(
  "redirect a mounted repository to a configuration of the agent's (commondir, worktree configuration)",
  "the redirection is taken away and the sandbox ended before git outside reads the agent's configuration",
  { root: "no code ran", user: "no code ran" },
  async (lab) => {
    const folder = ownersFolder();
    await repository(lab.net, folder);
    const plant = `mkdir -p evil; cp -r .git/objects .git/refs evil/; printf '[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = ./payload\\n\\thooksPath = evil\\n' > evil/config; cp payload evil/post-checkout; cp payload evil/pre-commit; printf '../evil\\n' > .git/commondir; printf '[core]\\n\\tfsmonitor = ./payload\\n' > .git/config.worktree`;
    expect(await plantAndRun(lab, folder, plant)).toBe(false);
  },
);

openAttack(
  "put a repository of the agent's into a mounted one, where the owner's git looks into it",
  "the owner's next git commands run no code of the agent",
  { root: "no code ran", user: "no code ran" },
  async (lab) => {
    const folder = ownersFolder();
    await repository(lab.net, folder);
    const plant = `git init -q sub && cd sub && git -c user.name=a -c user.email=a@example.com commit -q --allow-empty -m x && cd .. && git add sub && git -C sub config core.fsmonitor "$PWD/payload" && cp payload sub/payload && git -C sub config core.fsmonitor ./payload`;
    expect(await plantAndRun(lab, folder, plant)).toBe(false);
  },
);

attack(
  "editor, shell and tool start-up files in a mounted folder",
  "those that exist keep their content",
  { root: "unchanged", user: "unchanged" },
  async ({ create }) => {
    const names = [
      ".bashrc",
      ".profile",
      ".envrc",
      ".vimrc",
      ".exrc",
      ".vscode/settings.json",
      ".ssh/config",
      ".gitconfig",
    ];
    const folder = ownersFolder(Object.fromEntries(names.map((name) => [name, "owner\n"])));
    await using box = await create({ volumes: [`${folder}:/sandbox/work`] });
    await box.sh(
      `cd work; for f in ${names.join(" ")}; do echo evil >> $f; echo evil > x; mv -f x $f; rm -f $f; ln -f x $f; chmod 777 $f; done; mv .vscode v; rm -rf .ssh .vscode; true`,
    );
    for (const name of names) expect(readFileSync(join(folder, name), "utf8"), name).toBe("owner\n");
  },
);

attack(
  "start-up files where there were none: editor settings, environment, nested repositories, submodules, package managers",
  "editor settings of a repository cannot be planted; the owner is told of everything else by name, as HIGH",
  { root: "refused or named", user: "refused or named" },
  async ({ create }) => {
    const folder = ownersFolder({ "lib/a.c": "x\n" });
    mkdirSync(join(folder, ".git"));
    await using box = await create({ volumes: [`${folder}:/sandbox/work`] });
    await box.sh(
      `cd work; mkdir .vscode; echo '{}' > .vscode/settings.json; rmdir .vscode; mv .vscode x; ln -s /tmp .vscode;
      echo evil > lib/.envrc; echo evil > .npmrc; ln -s lib/a.c lib/.yarnrc.yml; mkdir -p lib/.git/hooks; echo evil > lib/.git/hooks/pre-commit; echo evil > lib/.git/config; touch -d 2001-01-01 lib/.envrc .npmrc lib/.git/config; true`,
    );
    expect(readdirSync(join(folder, ".vscode"))).toEqual([]);
    const look = async () => (await box.get()).status?.conditions.find(({ type }) => type === "VolumeStartupFiles");
    // What was found is believed for a moment.
    await expect
      .poll(look, { timeout: 10_000 })
      .toMatchObject({ status: "False", message: expect.stringMatching(/^HIGH: .*pre-commit/) });
    const found = await look();
    for (const name of [".npmrc", "lib/.envrc", "lib/.yarnrc.yml", "lib/.git/config", "lib/.git/hooks/pre-commit"]) {
      expect(found!.message).toContain(`${folder}/${name} (`);
    }
    await box.logged(/StartupFilesChanged: HIGH/);
  },
);

attack(
  "guards of a folder's start-up files past other ways to it: git's own folder, a start-up file or a part of the repository as a volume",
  "such a volume is refused, or the files stay as they were",
  { root: "refused or unchanged", user: "refused or unchanged" },
  async ({ gateway, create, net }) => {
    const folder = ownersFolder({ ".envrc": "owner\n", "lib/.envrc": "owner\n", "lib/tool/.git/config": "[core]\n" });
    await repository(net, folder);
    for (const name of [".git", ".git/hooks", ".git/config", ".envrc"]) {
      const made = await gateway.create({ volumes: [`${folder}/${name}:/sandbox/x`] }).catch((error: Error) => error);
      expect(made, name).toBeInstanceOf(Error);
    }
    mkdirSync(join(folder, "part"));
    const volumes = [`${folder}:/sandbox/one`, `${folder}/lib:/sandbox/two`, `${folder}/part:/sandbox/part`];
    await using box = await create({ volumes });
    await box.sh(
      `for d in one/lib two; do (cd $d; echo evil >> .envrc; rm -f .envrc; mv .envrc x; echo evil >> tool/.git/config; mkdir -p tool/.git/hooks; echo evil > tool/.git/hooks/pre-commit; mv tool/.git t); done; cd part; git init -q .; rmdir .git; mv .git x; mkdir -p .git; true`,
    );
    expect(readFileSync(join(folder, "lib/.envrc"), "utf8")).toBe("owner\n");
    expect(readFileSync(join(folder, "lib/tool/.git/config"), "utf8")).toBe("[core]\n");
    expect(readdirSync(join(folder, "lib/tool/.git/hooks"))).toEqual([]);
    expect(readdirSync(join(folder, "part/.git"))).toEqual([]);
  },
);

attack(
  "write to a folder that is mounted read-only, also through links, renames and other names of its files",
  "its files keep content, mode and times",
  { root: "unchanged", user: "unchanged" },
  async ({ create }) => {
    const readOnly = ownersFolder({ "a/b": "owner\n" });
    const writable = ownersFolder({ c: "x\n" });
    const look = () =>
      readdirSync(readOnly, { recursive: true, withFileTypes: true }).map((entry) => {
        const { mode, mtimeMs, size, uid } = lstatSync(join(entry.parentPath, entry.name));
        return [entry.name, mode, mtimeMs, size, uid];
      });
    const before = look();
    await using box = await create({ volumes: [`${readOnly}:/sandbox/ro:ro`, `${writable}:/sandbox/rw`] });
    const script = `cd /sandbox; echo x > ro/a/b; echo x >> ro/a/b; rm ro/a/b; mv ro/a ro/z; touch ro/new ro/a/b; chmod 777 ro/a/b; mkdir ro/d;
      ln ro/a/b rw/hard && echo x >> rw/hard; ln -s /sandbox/ro/a/b rw/soft; echo x >> rw/soft; truncate -s 0 ro/a/b; setfattr -n user.x -v y ro/a/b;
      python3 -c 'import os,mmap
f=os.open("/sandbox/ro/a/b",os.O_RDONLY)
for how in (os.O_RDWR, os.O_WRONLY|os.O_TRUNC):
  try: os.open("/proc/self/fd/%d"%f,how); print("reopened")
  except OSError: pass
try: os.fchmod(f,0o777); print("fchmod")
except OSError: pass
try: os.utime(f,(1,1)); print("utime")
except OSError: pass'; true`;
    expect((await box.sh(script)).stdout).toBe("");
    expect(look()).toEqual(before);
    expect(readFileSync(join(readOnly, "a/b"), "utf8")).toBe("owner\n");
  },
);

attack(
  "symbolic links out of a mounted folder, and .. above it",
  "the canary is neither read nor changed",
  { root: "dead end", user: "dead end" },
  async ({ create, witness }) => {
    const folder = ownersFolder();
    await using box = await create({ volumes: [`${folder}:/sandbox/work`] });
    const script = `cd work; ln -s ${witness.canary} a; ln -s ../../../../../../../..${witness.canary} b; ln -s /proc/1/root${witness.canary} c; ln -s ${witness.folder} d; ln -s / e;
      cat a b c d/canary e${witness.canary} ../../../../..${witness.canary} 2>/dev/null; for f in a b c d/x e${witness.canary}; do (echo evil > $f) 2>/dev/null; done;
      cat /etc/shadow /root/.ssh/* /home/*/.ssh/* /var/log/syslog /proc/1/environ ${witness.canary} 2>/dev/null; ls /root /home/* ${witness.folder} /var/lib/* /opt /srv /mnt /media 2>/dev/null; true`;
    const { stdout } = await box.sh(script);
    expect(stdout).not.toContain(witness.secret);
    expect(stdout.replace(/^\/[^\n]*:$/gm, "").trim()).toBe("");
  },
);

attack(
  "race: exchange a mounted folder's child for a link while another sandbox is created on it",
  "the new sandbox sees the owner's folder or is refused, never what the link points to",
  { root: "no canary", user: "no canary" },
  async ({ create, witness, gateway }) => {
    const folder = ownersFolder({ "sub/file": "owner\n" });
    await using box = await create({ volumes: [`${folder}:/sandbox/work`] });
    const racing = box.exec(
      [
        "python3",
        "-c",
        `import os,time
end=time.time()+6
os.symlink("${witness.folder}","/sandbox/work/link")
while time.time()<end:
  for a,b in (("sub","keep"),("link","sub"),("sub","link"),("keep","sub")):
    try: os.rename("/sandbox/work/"+a,"/sandbox/work/"+b)
    except OSError: pass`,
      ],
      { timeoutMs: 20_000 },
    );
    for (let round = 0; round < 8; round++) {
      const made = await gateway
        .create({ volumes: [`${join(folder, "sub")}:/sandbox/sub`] })
        .catch((error: Error) => error);
      if (made instanceof Error) continue;
      const { stdout } = await made.sh("cat sub/* 2>/dev/null; echo evil > sub/canary; true");
      expect(stdout).not.toContain(witness.secret);
      await made.delete();
    }
    await racing;
  },
  90_000,
);

attack(
  "unix sockets of the owner's services in a mounted folder",
  "the owner's service, which listened before the sandbox started, gets no connection",
  { root: "no connection", user: "no connection" },
  async ({ create }) => {
    const folder = ownersFolder();
    let connections = 0;
    const listen = async (name: string) => {
      const server = net.createServer(() => {
        connections += 1;
      });
      await new Promise<void>((done) => server.listen(join(folder, name), done));
      return server;
    };
    const before = await listen("before.sock");
    await using box = await create({ volumes: [`${folder}:/sandbox/work`] });
    const connect = (name: string) =>
      box.exec([
        "python3",
        "-c",
        `import socket;s=socket.socket(socket.AF_UNIX);s.connect("/sandbox/work/${name}");print("in")`,
      ]);
    expect((await connect("before.sock")).stdout).toBe("");
    await sleep(50);
    expect(connections).toBe(0);
    before.close();
  },
);

openAttack(
  "a unix socket that a service of the owner's makes in a mounted folder later",
  "the owner's service gets no connection",
  { root: "no connection", user: "no connection" },
  async ({ create }) => {
    const folder = ownersFolder();
    await using box = await create({ volumes: [`${folder}:/sandbox/work`] });
    let connections = 0;
    const server = net.createServer(() => {
      connections += 1;
    });
    await new Promise<void>((done) => server.listen(join(folder, "later.sock"), done));
    await box.exec([
      "python3",
      "-c",
      'import socket;s=socket.socket(socket.AF_UNIX);s.connect("/sandbox/work/later.sock")',
    ]);
    await sleep(100);
    server.close();
    expect(connections).toBe(0);
  },
);

attack(
  "what a service of the owner's makes in a mounted folder later: the owner is told",
  "the socket is named as HIGH in the sandbox's conditions; sockets of the sandbox's own are not",
  { root: "named", user: "named" },
  async ({ create }) => {
    const folder = ownersFolder();
    await using box = await create({ volumes: [`${folder}:/sandbox/work`] });
    const own =
      "import socket,time;s=socket.socket(socket.AF_UNIX);s.bind('/sandbox/work/own.sock');s.listen();time.sleep(60)";
    await box.sh(`python3 -c "${own}" >/dev/null 2>&1 & while [ ! -S /sandbox/work/own.sock ]; do sleep 0.05; done`);
    const server = net.createServer();
    await new Promise<void>((done) => server.listen(join(folder, "later.sock"), done));
    const look = async () => (await box.get()).status?.conditions.find(({ type }) => type === "VolumeStartupFiles");
    await expect
      .poll(look, { timeout: 10_000 })
      .toMatchObject({ message: expect.stringMatching(/^HIGH: .*later\.sock \(/) });
    expect((await look())?.message).not.toContain("own.sock");
    server.close();
  },
);

attack(
  "set-user-id bits, file capabilities, owners and devices in a mounted folder, where the mount's nosuid ends",
  "no file outside has a set-id bit, a capability, another owner or is a device",
  {
    root: "EPERM or ENOSYS or EINVAL or EOPNOTSUPP or EOVERFLOW",
    user: "EPERM or ENOSYS or EINVAL or EOPNOTSUPP",
  },
  async ({ create }, expected) => {
    const folder = ownersFolder();
    await using box = await create({ volumes: [`${folder}:/sandbox/work`] });
    expectOutcomes(await box.exec(["/attack/kernel", "set-ids"], { workdir: "/sandbox/work" }), expected, 13);
    await box.sh(
      "cd work; cp /bin/sh s; chmod u+s s; chmod g+s s; install -m 4755 /bin/sh i; mknod n b 8 0; mknod p p; mkdir -m 2777 d; tar cf t.tar s; tar xpf t.tar; cp --preserve=all $(command -v su || echo /bin/sh) su; true",
    );
    for (const entry of readdirSync(folder, { withFileTypes: true })) {
      const { mode, uid } = lstatSync(join(folder, entry.name));
      if (!entry.isDirectory()) expect(mode & 0o6000, entry.name).toBe(0);
      expect(uid, entry.name).toBe(process.getuid!());
      expect(entry.isBlockDevice() || entry.isCharacterDevice(), entry.name).toBe(false);
    }
  },
);

attack(
  "a home that cannot be deleted: closed folders, a tree deeper than any path, odd names, many links",
  "deleting the sandbox removes everything of it",
  { root: "deleted", user: "deleted" },
  async ({ create, gateway }) => {
    const box = await create();
    const script = `
import os
os.chdir("/sandbox")
os.makedirs("closed/inner/more"); open("closed/inner/f","w"); os.chmod("closed/inner",0); os.chmod("closed",0)
for n in (b"\\xff\\xfe", b"new\\nline", b"-rf", b"a"*255): os.mkdir(n)
os.symlink("/","out"); os.symlink("/sandbox","self"); os.mkfifo("pipe")
for i in range(2000):
    os.mkdir("d"*40); os.chdir("d"*40)
os.symlink("..","x")
print("made")`;
    expect((await box.exec(["python3", "-c", script])).stdout).toBe("made\n");
    await box.delete();
    await sleep(200);
    expect(readdirSync(join(gateway.folders.state, "sandboxes"))).not.toContain(box.id);
    expect(readdirSync(join(gateway.folders.state, "sandboxes")).filter((name) => name.includes(box.id))).toEqual([]);
  },
  120_000,
);

attack(
  "fill temporary folders and shared memory",
  "each ends at its own size; the machine's disk keeps its space",
  { root: "ENOSPC", user: "ENOSPC" },
  async ({ create }, expected) => {
    await using box = await create();
    const script = `head -c 300M /dev/zero > /dev/shm/x; stat -c %s /dev/shm/x; rm /dev/shm/x; df /tmp --output=fstype | tail -1; df /dev --output=fstype | tail -1`;
    const { stdout, stderr } = await box.sh(script);
    expect(stderr).toContain(expected === "ENOSPC" ? "No space left" : expected);
    const [size, ...types] = stdout.trim().split("\n");
    expect(Number(size)).toBeLessThanOrEqual(256 * 1024 * 1024);
    expect(types).toEqual(["tmpfs", "tmpfs"]);
  },
);

attack(
  "mount what belongs to OpenShell or the machine: state, sockets, /proc, /dev, /run, a link to them",
  "no such sandbox comes into being",
  { root: "refused", user: "refused" },
  async ({ gateway, witness }) => {
    const { symlinkSync } = await import("node:fs");
    const folder = ownersFolder();
    symlinkSync(gateway.folders.state, join(folder, "state"));
    symlinkSync(witness.folder, join(folder, "link"));
    const { state, runtime, userSocket } = gateway.folders;
    const home = gateway.user.home;
    const sources = [
      state,
      runtime,
      userSocket,
      home.state,
      home.config,
      home.folder,
      "/",
      "/proc",
      "/sys",
      "/dev",
      "/run",
      "/tmp/../proc",
    ];
    const { execFileSync } = await import("node:child_process");
    execFileSync("mkfifo", [join(folder, "pipe")]);
    mkdirSync(join(folder, "real/sub"), { recursive: true });
    symlinkSync("real", join(folder, "way"));
    const server = net.createServer().listen(join(folder, "socket"));
    const above = [join(home.state, ".."), join(home.config, "openshell"), `${state}/sandboxes`];
    const odd = ["pipe", "socket", "way", "way/sub", "none", "x".repeat(256)].map((name) => `${folder}/${name}`);
    const refused = [...sources, ...above, ...odd, join(folder, "state"), join(folder, "link")];
    for (const source of refused) {
      const made = await gateway.create({ volumes: [`${source}:/sandbox/x`] }).catch((error: Error) => error);
      expect(made, source).toBeInstanceOf(Error);
    }
    server.close();
    for (const target of [
      `/sandbox/${"é".repeat(128)}`,
      "/sandbox/a:b",
      "/sandbox//a",
      "relative",
      "/opt/openshell/x",
      "/var/run/x",
      "/",
      "/etc",
      "/usr",
      "/proc",
      "/dev",
      "/sandbox",
      "/tmp",
      "/sandbox/../etc",
      "/usr/bin",
      "/run",
    ]) {
      const made = await gateway.create({ volumes: [`${folder}:${target}`] }).catch((error: Error) => error);
      expect(made, target).toBeInstanceOf(Error);
    }
  },
);

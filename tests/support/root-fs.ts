import { execFileSync } from "node:child_process";
import {
  chmodSync,
  copyFileSync,
  cpSync,
  existsSync,
  lstatSync,
  mkdirSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";

/** Programs of a test root; the libraries that they need come with them. */
const PROGRAMS: readonly string[] = [
  "bash",
  "cat",
  "chmod",
  "curl",
  "env",
  "find",
  "head",
  "id",
  "ls",
  "ln",
  "mkdir",
  "mkfifo",
  "mv",
  "readlink",
  "rm",
  "sleep",
  "stat",
  "touch",
];

/**
 * Makes a small root file system out of this machine's own programs: merged /usr, accounts `root`, `node` (1000) and
 * `app` (1234), an /etc of its own, and a marker in /srv that no host has.
 */
export function makeRootFs(root: string): void {
  // As images have it, whatever the caller's own files look like.
  const umask = process.umask(0o022);
  try {
    fill(root);
  } finally {
    process.umask(umask);
  }
}

function fill(root: string): void {
  for (const folder of [
    "usr/bin",
    "usr/lib",
    "usr/lib64",
    "etc",
    "tmp",
    "proc",
    "dev",
    "run",
    "srv",
    "var/log",
    "root",
  ]) {
    mkdirSync(join(root, folder), { recursive: true, mode: 0o755 });
  }
  for (const name of ["bin", "lib", "lib64"]) symlinkSync(`usr/${name}`, join(root, name));
  const libraries = new Set<string>();
  const found = execFileSync("sh", ["-c", 'for name; do command -v "$name"; done', "sh", ...PROGRAMS], {
    encoding: "utf8",
  });
  const paths = found.trim().split("\n");
  for (const [index, name] of PROGRAMS.entries()) install(realpathSync(paths[index]!), join(root, "usr/bin", name));
  const listed = execFileSync("ldd", paths, { encoding: "utf8" }).matchAll(/(\/\S+)\s+\(0x/g);
  for (const [, library] of listed) libraries.add(library!);
  for (const library of libraries) {
    // Below /usr under the name that the loader looks for, whatever links the host has.
    const target = library.startsWith("/usr/") ? library : `/usr${library}`;
    install(realpathSync(library), root + target);
  }
  symlinkSync("bash", join(root, "usr/bin/sh"));
  if (existsSync("/etc/ld.so.cache")) cpSync("/etc/ld.so.cache", join(root, "etc/ld.so.cache"));
  writeFileSync(join(root, "etc/passwd"), PASSWD);
  writeFileSync(join(root, "etc/group"), "root:x:0:\nnode:x:1000:\napp:x:1234:\n");
  writeFileSync(join(root, "etc/shadow"), "root:*::0:99999:7:::\n");
  chmodSync(join(root, "etc/shadow"), 0o600);
  writeFileSync(join(root, "srv/marker"), "of the image\n");
}

const PASSWD = `root:x:0:0:root:/root:/bin/bash
node:x:1000:1000::/home/node:/bin/bash
app:x:1234:1234::/home/app:/bin/sh
`;

function install(from: string, to: string): void {
  mkdirSync(dirname(to), { recursive: true, mode: 0o755 });
  if (lstatSync(to, { throwIfNoEntry: false }) === undefined) copyFileSync(from, to);
  chmodSync(to, 0o755);
}

/** Packs a root with the machine's tar, owned by root whoever packs it. */
export function packRootFs(root: string, archive: string, ...options: readonly string[]): void {
  execFileSync("tar", ["-C", root, "--owner=0", "--group=0", ...options, "-cf", archive, "."]);
}

/** What `docker save` would write of an image: layers, each a folder to be packed, lowest first, and its configuration. */
export function saveImage(
  archive: string,
  layers: readonly string[],
  config: { readonly User?: string; readonly Env?: readonly string[]; readonly WorkingDir?: string },
): void {
  const folder = `${archive}.parts`;
  mkdirSync(folder);
  const names = layers.map((layer, index) => {
    mkdirSync(join(folder, `layer${index}`));
    packRootFs(
      layer,
      join(folder, `layer${index}`, "layer.tar"),
      ...(index === 0 ? ["--use-compress-program=gzip -1"] : []),
    );
    return `layer${index}/layer.tar`;
  });
  writeFileSync(join(folder, "config.json"), JSON.stringify({ architecture: "amd64", os: "linux", config }));
  writeFileSync(
    join(folder, "manifest.json"),
    JSON.stringify([{ Config: "config.json", RepoTags: ["t:1"], Layers: names }]),
  );
  packRootFs(folder, archive);
  rmSync(folder, { recursive: true });
}

import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** An ext4 file system in a file, mounted with project quotas in force. */
export interface QuotaDisk extends Disposable {
  readonly folder: string;
}

/** Makes one of so many bytes; a text where this machine cannot: no right, no loop devices, a kernel without quotas. */
export function quotaDisk(bytes: number): QuotaDisk | string {
  const parent = mkdtempSync(join(tmpdir(), "quota-"));
  const [image, folder] = [join(parent, "image"), join(parent, "disk")];
  mkdirSync(folder, { mode: 0o700 });
  writeFileSync(image, "");
  truncateSync(image, bytes);
  const run = (program: string, ...args: readonly string[]) => {
    const { status, stderr, error } = spawnSync(program, args, { encoding: "utf8", env: { PATH: SYSTEM_PATH } });
    return status === 0 ? undefined : `${program}: ${(stderr || error?.message || "failed").trim().split("\n")[0]}`;
  };
  const made =
    run("mkfs.ext4", "-q", "-O", "project,quota", "-E", "quotatype=prjquota", image) ??
    run("mount", "-o", "loop,prjquota", image, folder);
  if (made !== undefined) {
    rmSync(parent, { recursive: true, force: true });
    return made;
  }
  return {
    folder,
    [Symbol.dispose]() {
      const failed = run("umount", folder);
      if (failed !== undefined) throw new Error(failed);
      rmSync(parent, { recursive: true, force: true });
    },
  };
}

const SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin";

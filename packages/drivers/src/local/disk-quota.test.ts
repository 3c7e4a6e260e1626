import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { diskLayers, limitDisk, openDiskQuota, quotaProgram, releaseQuota } from "./disk-quota.ts";
import { SandboxFolders } from "./state.ts";

let root: string;
let folders: SandboxFolders;
/** What the program was told, and what it answers. */
let told: string[][];
let answer: { status: number; complaint: string };
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), "quota-"));
  folders = new SandboxFolders(root);
  mkdirSync(join(root, "box"));
  told = [];
  answer = { status: 0, complaint: "" };
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

const open = () =>
  openDiskQuota(root, async (args) => {
    told.push([...args]);
    return answer;
  });
const own = () => [folders.home("box"), folders.overlay("box"), folders.work("box")];
const WISH = { project: 1_879_048_192, limitBytes: 5_000 };

describe("a disk quota", () => {
  it("is put on the folders of a new sandbox, rounded up to whole KiB, and remembered", async () => {
    expect(await limitDisk("box", WISH, folders, await open())).toEqual({ how: "quota" });
    expect(told).toEqual([[root], [root, "1879048192", "5", ...own()]]);
    for (const folder of own()) expect(existsSync(folder)).toBe(true);
    expect(JSON.parse(readFileSync(join(root, "box/quota.json"), "utf8"))).toEqual({ project: WISH.project });
  });

  it("follows a changed limit at the next start, whatever the folders hold by then", async () => {
    const quota = await open();
    await limitDisk("box", WISH, folders, quota);
    writeFileSync(join(folders.home("box"), "file"), "x");
    expect(await limitDisk("box", { ...WISH, limitBytes: 1 << 20 }, folders, quota)).toEqual({ how: "quota" });
    expect(await limitDisk("box", { ...WISH, limitBytes: 0 }, folders, quota)).toEqual({ how: "none" });
    expect(told.slice(2).map((args) => args[2])).toEqual(["1024", "0"]);
  });

  it("is not put on a sandbox that has files of no project: its names could not move between folders any more", async () => {
    mkdirSync(folders.home("box"));
    writeFileSync(join(folders.home("box"), "file"), "x");
    expect(await limitDisk("box", WISH, folders, await open())).toMatchObject({ how: "watched" });
    expect(told).toEqual([[root]]);
  });

  it("is put on after a crash in the middle of it", async () => {
    mkdirSync(folders.home("box"));
    expect(await limitDisk("box", WISH, folders, await open())).toEqual({ how: "quota" });
  });

  it.each([
    [4, "", /in use by somebody else/],
    [3, "", /switched off/],
    [1, "limit 1879048192: Operation not permitted\n", /^limit 1879048192: Operation not permitted$/],
  ])("that is refused (status %d) leaves the limit watched, and says why", async (status, complaint, why) => {
    const quota = await open();
    answer = { status, complaint };
    expect(await limitDisk("box", WISH, folders, quota)).toEqual({ how: "watched", why: expect.stringMatching(why) });
    expect(existsSync(join(root, "box/quota.json"))).toBe(false);
  });

  it("is not looked for where limits are not in force, or the program cannot be run", async () => {
    answer = { status: 3, complaint: "" };
    expect(await open()).toBeUndefined();
    expect(await openDiskQuota(root, quotaProgram("/nonexistent"))).toBeUndefined();
    expect(await limitDisk("box", WISH, folders, undefined)).toEqual({ how: "watched" });
    expect(await limitDisk("box", { ...WISH, limitBytes: 0 }, folders, undefined)).toEqual({ how: "none" });
  });

  it("is taken away when the files are gone; that it cannot be is no error", async () => {
    const quota = await open();
    await releaseQuota(7, quota);
    expect(told.at(-1)).toEqual([root, "7", "0"]);
    answer = { status: 1, complaint: "no" };
    await releaseQuota(7, quota);
    await releaseQuota(undefined, quota);
    expect(told).toHaveLength(3);
  });

  it("is told from a watched limit in the isolation report", () => {
    const limit = 20 * 2 ** 30;
    expect(diskLayers({ how: "none" }, 0)).toEqual([]);
    expect(diskLayers({ how: "watched", why: "because" }, limit)).toEqual([
      {
        name: "disk_limit",
        enforced: true,
        detail: "watched: a sandbox whose files take more than 20 GiB is stopped (no project quota: because)",
      },
    ]);
    expect(diskLayers({ how: "quota" }, limit).map(({ name }) => name)).toEqual(["disk_limit", "disk_quota"]);
  });
});

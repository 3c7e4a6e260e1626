import { execFileSync, spawnSync } from "node:child_process";
import {
  linkSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import { gzipSync } from "node:zlib";
import { Code, ConnectError } from "@connectrpc/connect";
import { SandboxPhase } from "@openshell/api";
import { end, entry } from "@openshell/drivers/local/image/testing.ts";
import { afterAll, beforeAll, expect } from "vitest";
import { certificateClient, SCOPE, TestSandbox } from "../support/api.ts";
import { attack, type Lab, openLab } from "../support/attack.ts";
import { makeRootFs, packRootFs } from "../support/root-fs.ts";

/** Archives of root file systems that callers hand to the gateway, from its own machine: names, tokens, files, content. */

const MAX_BYTES = 96 * 2 ** 20;
const POLICY =
  "version: 1\nfilesystem_policy: { read_only: [/usr, /lib, /proc, /etc, /srv], read_write: [/sandbox, /tmp] }";

let folder: string;
let good: Buffer;
const tiny = Buffer.concat([entry({ name: "file", content: "x" }), end()]);
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "staged-"));
  makeRootFs(join(folder, "root"));
  packRootFs(join(folder, "root"), join(folder, "good.tar.gz"), "--use-compress-program=gzip -1");
  good = readFileSync(join(folder, "good.tar.gz"));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

openLab({ gateway: { gateway: { extra: `[local]\nrootfs_tar_max_bytes = ${MAX_BYTES}` } } });

type Client = Lab["gateway"]["client"];

const begin = (client: Client, sizeBytes = good.length, fileName = "x.tar") =>
  client.beginRootfsTarStaging({ workspaceScope: SCOPE, fileName, sizeBytes: BigInt(sizeBytes) });

/** A slot with this archive in it. */
async function staged(client: Client, content: Buffer): Promise<string> {
  const { stagingToken, uploadPath } = await begin(client, content.length);
  writeFileSync(uploadPath, content);
  return stagingToken;
}

const create = (client: Client, rootfs_tar_staging_token: string, workspace = "default") =>
  client.createSandbox({
    workspaceScope: { selection: { case: "workspace", value: workspace } },
    spec: { command: ["sleep", "86400"], template: { driverConfig: { local: { rootfs_tar_staging_token } } } },
  });

const codeOf = (call: Promise<unknown>): Promise<string> =>
  call.then(
    () => "made",
    (error: unknown) => Code[ConnectError.from(error).code] ?? "unknown",
  );

const inStaging = ({ gateway }: Lab): readonly string[] => {
  const at = join(gateway.folders.state, "staging");
  return readdirSync(at).filter((name) => !name.startsWith("slot-"));
};
const names = async ({ gateway }: Lab) =>
  (await gateway.client.listSandboxes({ workspaceScope: SCOPE })).sandboxes.map(({ metadata }) => metadata!.name);

/** The sandbox that came of it. */
function boxOf({ gateway }: Lab, made: Awaited<ReturnType<typeof create>>): TestSandbox {
  const { id, name } = made.sandbox!.metadata!;
  return new TestSandbox(gateway, name, id);
}

attack(
  "archives named with parents, folders, absolute paths and control characters",
  "no file or folder is made but slots, and the place that is named lies in one",
  { root: "InvalidArgument", user: "InvalidArgument" },
  async (lab, expected) => {
    const { client } = lab.gateway;
    const before = readdirSync(lab.gateway.folders.state, { recursive: true }).toSorted();
    const hostile = [
      "",
      ".",
      "..",
      "../x.tar",
      "/etc/x.tar",
      "a/x.tar",
      "a\\x.tar",
      "x\0.tar",
      "x\n.tar",
      "é".repeat(200),
    ];
    for (const name of hostile) expect(await codeOf(begin(client, 1, name)), JSON.stringify(name)).toBe(expected);
    expect(readdirSync(lab.gateway.folders.state, { recursive: true }).toSorted()).toEqual(before);
    for (const name of ["slot.json", ".hidden", "~", "$(id)", "-rf", "a:b"]) {
      const { uploadPath } = await begin(client, 1, name);
      expect(basename(uploadPath)).toBe(name);
      expect(uploadPath).toMatch(/\/staging\/slot-[0-9a-f]{16}\/upload\/[^/]+$/);
    }
  },
);

attack(
  "a token that is guessed, cut, given twice or by ten callers at the same moment",
  "one sandbox is made of an archive at most; its token is in no answer and no file",
  { root: "FailedPrecondition", user: "FailedPrecondition" },
  async (lab, expected) => {
    const { client, folders } = lab.gateway;
    const token = await staged(client, good);
    for (const guess of ["A".repeat(43), token.toLowerCase(), token.split("").toReversed().join("")])
      expect(await codeOf(create(client, guess))).toBe(expected);
    for (const broken of [token.slice(1), `${token}=`, "../../../../etc/passwd", ""])
      expect(await codeOf(create(client, broken)), broken).toBe("InvalidArgument");
    const all = await Promise.allSettled(Array.from({ length: 10 }, () => create(client, token)));
    const made = all.filter((one) => one.status === "fulfilled");
    expect(made).toHaveLength(1);
    await using box = boxOf(lab, made[0]!.value);
    await box.phase(SandboxPhase.READY);
    expect(await codeOf(create(client, token))).toBe(expected);
    expect(JSON.stringify((await box.get()).spec, (_, value) => (typeof value === "bigint" ? 0 : value))).not.toContain(
      token,
    );
    // The database and its log among them.
    const filesWith = (text: string) =>
      spawnSync("grep", ["-rlFs", "-e", text, folders.state], { encoding: "utf8" }).stdout.trim();
    expect(filesWith(box.name)).not.toBe("");
    expect(filesWith(token)).toBe("");
  },
);

attack(
  "a token of somebody else, presented with a certificate, on the local socket and in another workspace",
  "no sandbox is made of it; its owner still can",
  { root: "FailedPrecondition", user: "FailedPrecondition" },
  async (lab, expected) => {
    const local = lab.gateway.client;
    const remote = certificateClient(lab.gateway);
    const before = await names(lab);
    const [mine, theirs] = [await staged(local, tiny), await staged(remote, tiny)];
    expect(await codeOf(create(remote, mine))).toBe(expected);
    expect(await codeOf(create(local, theirs))).toBe(expected);
    expect(await codeOf(create(remote, theirs, "other"))).toBe("NotFound");
    expect(await names(lab)).toEqual(before);
    for (const [client, token] of [
      [local, mine],
      [remote, theirs],
    ] as const) {
      // It holds no program: what matters is whose it is.
      await boxOf(lab, await create(client, token)).delete();
    }
  },
);

attack(
  "a link, a second name, a pipe, a folder, more or less than was announced in place of the archive",
  "nothing of the owner's is read, waited for or removed; no sandbox is made and nothing stays",
  { root: "FailedPrecondition", user: "FailedPrecondition" },
  async (lab, expected) => {
    const { client } = lab.gateway;
    const { canary } = lab.witness;
    const before = await names(lab);
    const own = join(folder, "own.tar");
    writeFileSync(own, good);
    const elsewhere = join(folder, "elsewhere");
    mkdirSync(elsewhere);
    writeFileSync(join(elsewhere, "x.tar"), good);
    const swaps: Record<string, (path: string) => void> = {
      nothing: () => {},
      link: (path) => symlinkSync(canary, path),
      "link to an archive": (path) => symlinkSync(own, path),
      "second name": (path) => linkSync(own, path),
      pipe: (path) => execFileSync("mkfifo", [path]),
      folder: (path) => mkdirSync(path),
      more: (path) => writeFileSync(path, Buffer.concat([good, Buffer.from("x")])),
      less: (path) => writeFileSync(path, good.subarray(1)),
      "link in place of its folder": (path) => {
        rmSync(dirname(path), { recursive: true });
        symlinkSync(elsewhere, dirname(path));
      },
    };
    for (const [what, swap] of Object.entries(swaps)) {
      const { stagingToken, uploadPath } = await begin(client);
      swap(uploadPath);
      expect(await codeOf(create(client, stagingToken)), what).toBe(expected);
      expect(await codeOf(create(client, stagingToken)), what).toBe(expected);
    }
    for (const kept of [own, join(elsewhere, "x.tar")]) expect(readFileSync(kept).equals(good)).toBe(true);
    expect(await names(lab)).toEqual(before);
    expect(inStaging(lab)).toEqual([]);
  },
);

attack(
  "an archive that is exchanged while the sandbox is made of it",
  "the sandbox stands on what was checked, or does not start",
  { root: "as announced", user: "as root" },
  async (lab) => {
    const { client } = lab.gateway;
    const { stagingToken, uploadPath } = await begin(client);
    writeFileSync(uploadPath, good);
    const made = create(client, stagingToken).catch((error: unknown) => ConnectError.from(error));
    // Under its old name as soon as the gateway lets go of it, and on.
    for (let n = 0; n < 200; n++) {
      try {
        mkdirSync(dirname(uploadPath), { recursive: true });
        rmSync(uploadPath, { force: true });
        symlinkSync(lab.witness.canary, uploadPath);
      } catch {
        // It is being removed.
      }
      await new Promise((resolve) => setImmediate(resolve));
    }
    const outcome = await made;
    if (outcome instanceof ConnectError) expect(outcome.code).toBe(Code.FailedPrecondition);
    else {
      await using box = boxOf(lab, outcome);
      await box.phase(SandboxPhase.READY);
      expect((await box.sh("cat /srv/marker")).stdout).toBe("of the image\n");
    }
    rmSync(dirname(dirname(uploadPath)), { recursive: true, force: true });
  },
);

attack(
  "bombs: little that unpacks to much, sizes that are lies, links that lead out",
  "the sandbox fails with the reason; nothing is unpacked, written or linked outside, and nothing stays",
  { root: "StartFailed", user: "as root" },
  async (lab, expected) => {
    const { client, folders } = lab.gateway;
    const outside = lab.witness.folder;
    const zeros = Buffer.alloc(MAX_BYTES + 1);
    const bombs: Record<string, Buffer> = {
      zeros: gzipSync(Buffer.concat([entry({ name: "big", size: zeros.length }), zeros]), { level: 1 }),
      lie: Buffer.concat([entry({ name: "big", size: 0o77777777777 }), end()]),
      link: Buffer.concat([
        entry({ name: "l", type: "2", link: outside }),
        entry({ name: "l/x", content: "x" }),
        end(),
      ]),
      parent: Buffer.concat([entry({ name: `../../../..${outside}/x`, content: "x" }), end()]),
    };
    for (const [what, bomb] of Object.entries(bombs)) {
      const box = boxOf(lab, await create(client, await staged(client, bomb)));
      const { status } = await box.phase(SandboxPhase.ERROR);
      expect(status!.conditions.find(({ type }) => type === "Ready")?.reason, what).toBe(expected);
      await box.delete();
    }
    expect(inStaging(lab)).toEqual([]);
    expect(readdirSync(join(folders.state, "images")).filter((name) => name.startsWith(".tmp"))).toEqual([]);
    expect(readdirSync(outside)).toEqual(["canary"]);
  },
);

attack(
  "more slots than a workspace has, and archives larger than the gateway takes",
  "refused from the first one beyond; the owner's sandboxes are made as before",
  { root: "ResourceExhausted", user: "as root" },
  async (lab, expected) => {
    const remote = certificateClient(lab.gateway);
    for (const size of [0, MAX_BYTES + 1, 2 ** 52]) expect(await codeOf(begin(remote, size))).toBe("InvalidArgument");
    const asked = await Promise.all(Array.from({ length: 40 }, () => codeOf(begin(remote, 1))));
    expect(asked.filter((code) => code === "made").length).toBeLessThanOrEqual(16);
    expect(asked.at(-1)).toBe(expected);
    await using box = await lab.create({ policy: POLICY });
    expect((await box.sh("echo on")).stdout).toBe("on\n");
  },
);

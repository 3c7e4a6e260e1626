import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type Clock, systemClock } from "@openshell/base";
import type { Boundary } from "@openshell/boundary";
import type { SandboxIntent, StartedSandbox } from "@openshell/drivers/driver.ts";
import { parseLocalDriverConfig } from "@openshell/drivers/local/config.ts";
import { unpackInThread } from "@openshell/drivers/local/image/thread.ts";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { takeInventory } from "../../support/leaks.ts";
import {
  callerFolder,
  confine,
  type DriverBench,
  expectNoDriverLeaks,
  type Output,
  openBench,
  shell,
} from "../../support/local-driver.ts";
import { inMode } from "../../support/modes.ts";
import { makeRootFs, packRootFs } from "../../support/root-fs.ts";

const OK = { kind: "exited", code: 0 };
/** A policy that opens the whole image, so that only the image's own rights decide. */
const WRITABLE = ["/srv", "/opt/work"];
const OPEN = { readOnly: ["/"], readWrite: ["/etc", "/usr", ...WRITABLE, "/tmp", "/dev/null"] };

describe("a root of its own", () => {
  let bench: DriverBench;
  let folder: string;
  let archive: string;

  beforeAll(async () => {
    bench = await openBench();
    folder = callerFolder(bench, "root");
    makeRootFs(folder);
    archive = join(bench.folder, "root.tar.gz");
    packRootFs(folder, archive, "--use-compress-program=gzip -1");
  });
  afterEach(async () => {
    for (const { sandboxId } of await bench.driver.list()) await bench.driver.delete(sandboxId);
  });
  afterAll(async () => {
    await bench?.[Symbol.asyncDispose]();
  });

  /** Starts a sandbox on an image, runs scripts in it, and ends it. */
  async function inside(
    changes: Partial<SandboxIntent>,
    use: (sh: (script: string) => Promise<Output>, started: StartedSandbox, boundary: Boundary) => Promise<void>,
    driver = bench.driver,
  ): Promise<SandboxIntent> {
    const intent = bench.intent({ writablePaths: WRITABLE, ...changes });
    const started = intent.generation === 1n ? await driver.create(intent) : await driver.start(intent);
    const boundary = await confine(started, intent, OPEN);
    try {
      await use((script) => shell(boundary, started, script), started, boundary);
    } finally {
      await boundary[Symbol.asyncDispose]();
      await driver.stop(intent.sandboxId);
    }
    return intent;
  }

  const image = (source: string) => ({ root: { kind: "image", source } as const });

  it.each(["folder", "archive"])("runs on a %s: its files, nothing of the host's", async (kind) => {
    const before = takeInventory();
    const intent = await inside(image(kind === "folder" ? folder : archive), async (sh) => {
      expect(
        await sh(
          "cat /srv/marker; ls /; cat /etc/resolv.conf; cat /run/openshell-supervisor-ca/openshell-ca.pem | head -1",
        ),
      ).toMatchObject({
        exit: OK,
        stderr: "",
        stdout:
          "of the image\nbin\ndev\netc\nlib\nlib64\nopt\nproc\nroot\nrun\nsandbox\nsrv\ntmp\nusr\nvar\nnameserver 127.0.0.1\n-----BEGIN CERTIFICATE-----\n",
      });
      expect((await sh("test -e /usr/bin/perl || test -e /usr/share/doc")).exit).toEqual({ kind: "exited", code: 1 });
      // Mounts show no path of the host but those of the sandbox's own folders and devices.
      const mounts = (await sh("cat /proc/self/mountinfo")).stdout;
      expect(mounts).toMatch(/ \/ \/ rw,nosuid,nodev\S* .*- overlay /);
      expect(mounts).not.toContain(folder);
    });
    await bench.driver.delete(intent.sandboxId);
    await expectNoDriverLeaks(bench, before);
  });

  it("is the image's account of the agent's id, with home, terminal, /tmp and certificates as everywhere", async () => {
    const intent = await inside(image(archive), async (sh) => {
      const uid = inMode({ root: "1000", user: String(process.getuid!()) });
      const name = inMode({ root: "node", user: "sandbox" });
      const { stdout } = await sh(
        "id -u; id -un; echo $HOME $USER; pwd; echo $SSL_CERT_FILE; touch /tmp/x ~/x && echo written",
      );
      expect(stdout).toBe(`${uid}\n${name}\n/sandbox ${name}\n/sandbox\n/etc/openshell-tls/ca-bundle.pem\nwritten\n`);
      expect((await sh("head -1 /etc/ssl/certs/ca-certificates.crt")).stdout).toBe("-----BEGIN CERTIFICATE-----\n");
      expect((await sh("test -c /dev/null && test -d /dev/pts && ls /proc/self/fd > /dev/null")).exit).toEqual(OK);
    });
    await bench.driver.delete(intent.sandboxId);
  });

  it("keeps owners where there are ids for them, and says so where there are none", async () => {
    const intent = await inside(image(archive), async (sh, started) => {
      const shadow = await sh("cat /etc/shadow");
      const layer = started.isolation.find(({ name }) => name === "image_owners");
      expect(shadow.exit).toEqual(inMode({ root: { kind: "exited", code: 1 }, user: OK }));
      expect(layer).toMatchObject(inMode({ root: { enforced: true }, user: { enforced: false } }));
      // What the policy opens for writing is the agent's, though the image's root owned it or nobody had it.
      expect(await sh("touch /opt/work/x /srv/x && chmod 700 /opt/work/x")).toMatchObject({ exit: OK, stderr: "" });
      expect((await sh("echo x >> /usr/bin/cat")).exit).toEqual(
        inMode({ root: { kind: "exited", code: 1 }, user: OK }),
      );
    });
    await bench.driver.delete(intent.sandboxId);
  });

  it("keeps what was written over stop and start, shares nothing, and forgets it with the sandbox", async () => {
    const first = await inside(image(archive), async (sh) => {
      expect((await sh("rm /srv/marker; echo mine > /srv/own")).exit).toEqual(OK);
    });
    const other = await inside(image(archive), async (sh) => {
      expect((await sh("ls /srv")).stdout).toBe("marker\n");
    });
    // The archive itself is not needed any more.
    await inside({ ...first, generation: 2n, ...image(join(bench.folder, "moved.tar")) }, async (sh) => {
      expect((await sh("ls /srv; cat /srv/own")).stdout).toBe("own\nmine\n");
    });
    for (const { sandboxId } of [first, other]) await bench.driver.delete(sandboxId);
    expect(readdirSync(join(bench.options.paths.state, "sandboxes"))).toEqual([]);
  });

  it("starts again whatever the agent did to the places of mounts", async () => {
    const intent = await inside(image(folder), async (sh) => {
      const script =
        "rm -f /etc/resolv.conf; mkfifo /etc/resolv.conf; mv /etc/hosts /etc/hosts2; ln -s /proc/self/environ /etc/hosts; ls -d /etc";
      expect((await sh(script)).stdout).toBe("/etc\n");
    });
    await inside({ ...intent, generation: 2n }, async (sh) => {
      expect((await sh("cat /srv/marker")).stdout).toBe("of the image\n");
    });
    await bench.driver.delete(intent.sandboxId);
  });

  it("takes volumes, also where the image has a link", async () => {
    const linked = callerFolder(bench, "linked");
    makeRootFs(linked);
    execFileSync("ln", ["-s", "/etc", join(linked, "work")]);
    const data = callerFolder(bench, "data");
    writeFileSync(join(data, "d"), "data\n");
    const volumes = [{ source: data, target: "/work/data", access: "ro" }] as const;
    const intent = await inside({ ...image(linked), volumes }, async (sh) => {
      expect((await sh("cat /work/data/d; ls /etc/data")).stdout).toBe("data\n");
    });
    await bench.driver.delete(intent.sandboxId);
  });

  it("unpacks an archive once, removes it when no sandbox uses it, and leftovers of a crash", async () => {
    const images = join(bench.options.paths.state, "images");
    mkdirSync(join(images, ".tmp-00"));
    const options = { config: parseLocalDriverConfig({ image_keep_seconds: 0 }) };
    let unpacked = 0;
    {
      await using counting = await bench.reopen({
        ...options,
        unpack: (...args) => {
          unpacked += 1;
          return unpackInThread(...args);
        },
      });
      const intents = [bench.intent(image(archive)), bench.intent(image(archive))];
      await Promise.all(intents.map((intent) => counting.create(intent)));
      expect(unpacked).toBe(1);
      await counting.delete(intents[0]!.sandboxId);
      expect(readdirSync(images).filter((name) => !name.startsWith("."))).toHaveLength(1);
      await counting.delete(intents[1]!.sandboxId);
    }
    expect(readdirSync(images)).toEqual([]);
    expect(existsSync(archive)).toBe(true);
  });

  it("is told of when its files take more than the limit, in its home and in the layer over the image", async () => {
    // Time runs a thousand times faster for the driver that watches; another one started the sandbox.
    const clock: Clock = {
      ...systemClock,
      monotonic: () => performance.now() * 1_000,
      sleep: (ms, options) => systemClock.sleep(ms / 1_000, options),
    };
    const intent = bench.intent({ writablePaths: WRITABLE, ...image(archive) });
    const started = await bench.driver.create(intent);
    const boundary = await confine(started, intent, OPEN);
    const fill = "for f in /srv/fill ~/fill; do head -c 5000000 /dev/urandom > $f || exit; done";
    expect(await shell(boundary, started, fill)).toMatchObject({ exit: OK, stderr: "" });
    await boundary[Symbol.asyncDispose]();
    await using watching = await bench.reopen({
      clock,
      config: parseLocalDriverConfig({ sandbox_disk_limit: 8_000_000 }),
    });
    const events = watching.watch(AbortSignal.timeout(30_000))[Symbol.asyncIterator]();
    const told = events.next();
    await watching.list();
    const { value } = await told;
    expect(value).toMatchObject({
      kind: "disk_limit",
      sandboxId: intent.sandboxId,
      generation: 1n,
      limitBytes: 8_000_000,
    });
    expect((value as { usedBytes: number }).usedBytes).toBeGreaterThan(8_000_000);
  });

  it("leaves nothing when an archive is cut off", async () => {
    const cut = join(bench.folder, "cut.tar");
    packRootFs(folder, join(bench.folder, "whole.tar"));
    execFileSync("sh", ["-c", `head -c 3000000 ${join(bench.folder, "whole.tar")} > ${cut}`]);
    const intent = bench.intent(image(cut));
    await expect(bench.driver.create(intent)).rejects.toMatchObject({ code: "image_invalid" });
    await bench.driver.delete(intent.sandboxId);
    rmSync(cut);
  });
});

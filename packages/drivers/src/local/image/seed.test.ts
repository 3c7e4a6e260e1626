import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { lookUp, readInside } from "./lookup.ts";
import { repairUpper, type SeedEntry, writeSeed } from "./seed.ts";

let folder: string;
let image: string;
const seed = (path = "") => join(folder, "seed", path);
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "seed-"));
  image = join(folder, "image");
  mkdirSync(join(image, "usr/bin"), { recursive: true });
  mkdirSync(join(image, "etc"));
  mkdirSync(join(folder, "outside"));
  writeFileSync(join(folder, "outside/secret"), "secret\n");
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const write = (...entries: readonly SeedEntry[]) =>
  writeSeed({ folder: seed(), imageRoot: image, agent: undefined }, entries);

describe("writeSeed", () => {
  it("makes mount points and files under their own names, whatever the image has there", async () => {
    symlinkSync(join(folder, "outside"), join(image, "tmp"));
    await write(
      { kind: "point", path: "/tmp", folder: true },
      { kind: "point", path: "/one/file", folder: false },
      { kind: "file", path: "/etc/hosts", content: "h\n" },
      { kind: "link", path: "/run/ca", to: "/etc/tls" },
    );
    expect(lstatSync(seed("tmp")).isDirectory()).toBe(true);
    expect(readFileSync(seed("etc/hosts"), "utf8")).toBe("h\n");
    expect(lstatSync(seed("one/file")).size).toBe(0);
    expect(lstatSync(seed("run/ca")).isSymbolicLink()).toBe(true);
    expect(readdirSync(join(folder, "outside"))).toEqual(["secret"]);
  });

  it("keeps the mode of folders that the image has, without its set-id bits", async () => {
    chmodSync(join(image, "etc"), 0o2750);
    await write({ kind: "file", path: "/etc/hosts", content: "" });
    expect(lstatSync(seed("etc")).mode & 0o7777).toBe(0o750);
  });

  it("follows the image's links for a writable folder and a replaced file, never out of it", async () => {
    symlinkSync("usr/bin", join(image, "bin"));
    symlinkSync(join(folder, "outside"), join(image, "out"));
    writeFileSync(join(image, "etc/real.pem"), "");
    symlinkSync("real.pem", join(image, "etc/link.pem"));
    await write(
      { kind: "agent-folder", path: "/bin/tools" },
      { kind: "agent-folder", path: "/out/new" },
      { kind: "agent-folder", path: "/etc/real.pem/below" },
      { kind: "replacement", path: "/etc/link.pem", content: "pem" },
    );
    expect(existsSync(seed("usr/bin/tools"))).toBe(true);
    expect(existsSync(seed("bin"))).toBe(false);
    expect(readFileSync(seed("etc/real.pem"), "utf8")).toBe("pem");
    expect(existsSync(seed("etc/link.pem"))).toBe(false);
    expect(readdirSync(join(folder, "outside"))).toEqual(["secret"]);
  });

  it("is made anew each time", async () => {
    await write({ kind: "file", path: "/a", content: "" });
    await write({ kind: "file", path: "/b", content: "" });
    expect(readdirSync(seed())).toEqual(["b"]);
  });
});

describe("repairUpper", () => {
  it("takes out what stands in the way of a mount point, and nothing else", async () => {
    const upper = join(folder, "upper");
    mkdirSync(join(upper, "etc/tls"), { recursive: true });
    writeFileSync(join(upper, "etc/own"), "kept");
    symlinkSync(join(folder, "outside"), join(upper, "tmp"));
    writeFileSync(join(upper, "proc"), "a file");
    mkdirSync(join(upper, "one/file/deep"), { recursive: true });
    symlinkSync("/", join(upper, "var"));
    await repairUpper(upper, [
      { kind: "point", path: "/etc/tls", folder: true },
      { kind: "point", path: "/tmp", folder: true },
      { kind: "point", path: "/proc", folder: true },
      { kind: "point", path: "/one/file", folder: false },
      { kind: "point", path: "/var/data", folder: true },
      { kind: "file", path: "/etc/own", content: "" },
    ]);
    expect(readdirSync(upper).sort()).toEqual(["etc", "one"]);
    expect(readdirSync(join(upper, "one"))).toEqual([]);
    expect(readdirSync(join(upper, "etc")).sort()).toEqual(["own", "tls"]);
    expect(readdirSync(join(folder, "outside"))).toEqual(["secret"]);
  });
});

describe("looking into an image", () => {
  it("stays inside: absolute links, parents and loops", () => {
    symlinkSync(join(folder, "outside/secret"), join(image, "etc/absolute"));
    symlinkSync("../../../../../../outside/secret", join(image, "etc/parents"));
    symlinkSync("loop", join(image, "etc/loop"));
    writeFileSync(join(image, "etc/passwd"), "inside");
    symlinkSync("/etc/passwd", join(image, "etc/good"));
    for (const name of ["absolute", "parents", "loop", "missing"]) {
      expect(readInside(image, `/etc/${name}`, 100), name).toBeUndefined();
    }
    expect(readInside(image, "/etc/good", 100)).toBe("inside");
    expect(readInside(image, "/../../etc/passwd", 100)).toBe("inside");
    expect(readInside(image, "/etc/passwd", 5)).toBeUndefined();
    expect(lookUp(image, "/etc/..")?.path).toBe(image);
  });
});

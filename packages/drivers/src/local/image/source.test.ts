import { mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { checkImageSource } from "./source.ts";

let folder: string;
beforeEach(() => {
  folder = realpathSync(mkdtempSync(join(tmpdir(), "source-")));
  mkdirSync(join(folder, "roots/debian/bin"), { recursive: true });
  mkdirSync(join(folder, "state"));
  writeFileSync(join(folder, "roots/x.tar"), "");
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const OWN = { uid: 1000, gid: 1000 };
const check = (
  source: string,
  changes: { readonly caller?: typeof OWN | undefined; readonly imageRoots?: readonly string[] } = {},
) =>
  checkImageSource(source, {
    caller: OWN,
    gatewayUid: 1000,
    imageRoots: [],
    privateFolders: [join(folder, "state")],
    ...changes,
  });

describe("checkImageSource", () => {
  it("tells folders from archives", () => {
    expect(check(join(folder, "roots/debian"))).toBe("folder");
    expect(check(join(folder, "roots/x.tar"))).toBe("archive");
  });

  it("lets others only below image_roots", () => {
    const source = join(folder, "roots/x.tar");
    for (const caller of [undefined, { uid: 1001, gid: 1000 }]) {
      expect(() => check(source, { caller })).toThrow(expect.objectContaining({ code: "image_refused" }));
      expect(check(source, { caller, imageRoots: [join(folder, "roots")] })).toBe("archive");
      expect(() => check(join(folder, "roots-2"), { caller, imageRoots: [join(folder, "roots")] })).toThrow(
        /may not use/,
      );
    }
  });

  it("refuses the gateway's own folders, whatever holds them, links, interfaces of the kernel, and what is not there", () => {
    symlinkSync(join(folder, "roots"), join(folder, "link"));
    const cases: [source: string, code: string][] = [
      [join(folder, "state"), "image_refused"],
      [folder, "image_refused"],
      ["/", "image_refused"],
      ["/proc/self", "image_refused"],
      ["/dev/null", "image_refused"],
      [join(folder, "link"), "image_refused"],
      [join(folder, "link/debian"), "image_refused"],
      [`${folder}/roots/../roots`, "image_invalid"],
      ["relative", "image_invalid"],
      [join(folder, "none"), "image_unavailable"],
      [join(folder, "roots/debian/bin"), "image_invalid"],
    ];
    for (const [source, code] of cases) {
      expect(() => check(source, { imageRoots: ["/"] }), source).toThrow(expect.objectContaining({ code }));
    }
  });
});

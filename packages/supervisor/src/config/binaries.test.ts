import { parsePolicy } from "@openshell/policy";
import { describe, expect, it } from "vitest";
import { resolveBinaries } from "./binaries.ts";

const links: Readonly<Record<string, string>> = {
  "/usr/bin/python3": "/usr/bin/python3.12",
  "/bin/sh": "/usr/bin/dash",
  "/usr/bin/tool": "/home/agent/tool",
  "/sandbox/bin/mine": "/usr/bin/curl",
  "/usr/bin/git": "/usr/bin/git",
};

function policyWith(...binaries: string[]) {
  const result = parsePolicy(
    JSON.stringify({
      version: 1,
      network_policies: {
        a: { endpoints: [{ host: "a.example.com", port: 443 }], binaries: binaries.map((path) => ({ path })) },
      },
    }),
  );
  if (!result.ok) throw new Error(JSON.stringify(result.violations));
  return result.policy;
}
const resolve = async (path: string): Promise<string> => links[path] ?? Promise.reject(new Error("ENOENT"));

describe("resolveBinaries", () => {
  it("finds what a link of the system leads to, and leaves files and globs alone", async () => {
    const found = await resolveBinaries(
      policyWith("/usr/bin/python3", "/bin/sh", "/usr/bin/git", "/usr/bin/*", "/usr/bin/absent"),
      resolve,
    );
    expect([...found]).toEqual(
      expect.arrayContaining([
        ["/usr/bin/python3", "/usr/bin/python3.12"],
        ["/bin/sh", "/usr/bin/dash"],
      ]),
    );
    expect(found.size).toBe(2);
  });
  it("follows no link that the agent could have made, nor one that leads where it can write", async () => {
    expect((await resolveBinaries(policyWith("/sandbox/bin/mine", "/usr/bin/tool"), resolve)).size).toBe(0);
  });
});

import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { TestInternet } from "../../support/internet/index.ts";
import { expectNoLeaks, type Inventory, takeInventory } from "../../support/leaks.ts";
import { mode } from "../../support/mode.ts";
import { OPENSHELL, TestOpenShell } from "../../support/openshell.ts";
import { registerSecret } from "../../support/secrets.ts";

/** Some 12 s on a quiet machine. */
const RUN_LIMIT_MS = 280_000;

/** The page that a newcomer follows, as commands and what they must print. */
interface Step {
  readonly commands: string;
  readonly printed: readonly string[];
}

function stepsOf(page: string): readonly Step[] {
  const blocks = [...page.matchAll(/```sh\n([\s\S]*?)```\n(?:```text\n([\s\S]*?)```\n)?/g)];
  return blocks.map(([, commands, printed]) => ({
    commands: commands!,
    printed: (printed ?? "").split("\n").filter((line) => line !== ""),
  }));
}

/** Writes a package that pip can install. */
const WHEEL = `
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as wheel:
    wheel.writestr("hello.py", "")
    info = "hello-1.0.dist-info/"
    wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: hello\\nVersion: 1.0\\n")
    wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    wheel.writestr(info + "RECORD", "".join(name + ",,\\n" for name in wheel.namelist() + [info + "RECORD"]))
`;

const page = readFileSync(resolve(import.meta.dirname, "../../../docs/first-steps.md"), "utf8");

// Where root and a user differ is tested elsewhere; newcomers are users.
describe.skipIf(mode === "root")("docs/first-steps.md", () => {
  let before: Inventory;
  let net: TestInternet;
  let openshell: TestOpenShell;
  let wheelBytes: Buffer;
  beforeAll(async () => {
    before = takeInventory();
    net = await TestInternet.start();
    await net.host("api.example.com");
    await net.host("docs.example.com");
    await net.host("pypi.example.com", {
      handler: (request, response) => {
        if (request.url?.startsWith("/simple/hello")) {
          response.setHeader("content-type", "text/html");
          response.end('<a href="/hello-1.0-py3-none-any.whl">hello-1.0-py3-none-any.whl</a>');
        } else response.end(wheelBytes);
      },
    });
    openshell = TestOpenShell.create(net);
    // It starts nothing, and whatever is left in the end is stopped.
    await openshell.run(["status"]);
    const wheel = openshell.home.path("hello-1.0-py3-none-any.whl");
    const made = await net.run(["python3", "-c", WHEEL, wheel]);
    expect(made.stderr).toBe("");
    wheelBytes = readFileSync(wheel);
    registerSecret("sk-example-0123456789");
  });
  afterAll(async () => {
    await openshell[Symbol.asyncDispose]();
    await net[Symbol.asyncDispose]();
    await expectNoLeaks(before);
  });

  test(
    "its commands do what it says, from the first to the last",
    async () => {
      const steps = stepsOf(page);
      expect(steps.length).toBeGreaterThan(8);
      // One shell for all, as in a person's terminal; a line of its own between the steps, also behind output without an end of line.
      const script = [
        `openshell() { ${OPENSHELL.join(" ")} "$@"; }`,
        ...steps.map(({ commands }, index) => `echo; echo "== ${index}"\n${commands}`),
      ].join("\n");
      const project = openshell.home.path("my project");
      const bash = ["bash", "-c", 'mkdir "$0" && cd "$0" && eval "$1" 2>&1', project, script];
      const { stdout } = await net.run(bash, {
        env: openshell.env,
        cwd: openshell.home.path(),
        timeoutMs: RUN_LIMIT_MS,
      });
      const outputs = stdout.split(/^== \d+\n/m).slice(1);
      expect(outputs).toHaveLength(steps.length);
      steps.forEach(({ commands, printed }, index) => {
        let rest = outputs[index]!;
        for (const line of printed) {
          expect(rest, `${commands}\nprinted\n${outputs[index]}`).toContain(line);
          rest = rest.slice(rest.indexOf(line) + line.length);
        }
        if (!commands.includes("||")) expect(outputs[index], commands).not.toMatch(/^(error|! )/m);
      });
      expect(await openshell.json(["status"])).toMatchObject({ status: expect.stringMatching(/disconnected/i) });
    },
    RUN_LIMIT_MS + 60_000,
  );
});

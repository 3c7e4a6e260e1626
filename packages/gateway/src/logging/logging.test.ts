import { mkdtempSync, readFileSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { inspect } from "node:util";
import { afterEach, beforeEach, expect, it } from "vitest";
import { Secret } from "../auth/secret.ts";
import { openGatewayLog } from "./logger.ts";

let folder: string;
let path: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "openshell-log-"));
  path = join(folder, "gateway.log");
});
afterEach(() => rmSync(folder, { recursive: true }));

it("writes JSON lines of the configured level to a private file", () => {
  using gateway = openGatewayLog(path, "info");
  gateway.log.debug("not this");
  gateway.log.info({ sandbox_id: "s" }, "this");
  gateway.flush();
  const lines = readFileSync(path, "utf8")
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line));
  expect(lines).toEqual([{ level: "info", time: expect.any(String), pid: process.pid, sandbox_id: "s", msg: "this" }]);
  expect(statSync(path).mode & 0o777).toBe(0o600);
});

it("shows no secret in any way of printing it", () => {
  const secret = new Secret("hunter2-very-secret");
  using gateway = openGatewayLog(path, "trace");
  gateway.log.info({ secret, deep: { value: secret, list: [secret] } }, `in text ${secret}`);
  gateway.log.warn({
    err: new Error(`failed with ${secret}`),
    token: "plain-token-value",
    header: { authorization: "plain-token-value" },
  });
  gateway.flush();
  const printed = [
    readFileSync(path, "utf8"),
    inspect({ secret }),
    JSON.stringify({ secret }),
    `${secret}`,
    String(secret),
  ];
  expect(printed.join("\n")).not.toMatch(/hunter2|plain-token-value/);
  expect(secret.reveal()).toBe("hunter2-very-secret");
});

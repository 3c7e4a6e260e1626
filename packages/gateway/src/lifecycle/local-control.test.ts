import { expect, test } from "vitest";
import type { AnyRequest, AnyResponse } from "../http/dispatcher.ts";
import { type LocalControl, localControlRoute } from "./local-control.ts";

const OWNER = { caller: { ownerOfMachineFiles: true } };

/** Asks for the end of a gateway with two running sandboxes, `left` of which cannot be stopped. */
async function askToStop(sandboxes: string, left: number) {
  const done: string[] = [];
  const control: LocalControl = {
    record: () => undefined,
    runningSandboxes: async () => 2,
    hosts: () => 1,
    stopSandboxes: async () => {
      done.push("stop sandboxes");
      return left;
    },
    stop: (what) => void done.push(`end, ${what}`),
  };
  const { promise, resolve } = Promise.withResolvers<{ status: number; body: string }>();
  let status = 0;
  const response = {
    writeHead: (code: number) => {
      status = code;
    },
    end: (body: string) => resolve({ status, body }),
  };
  const request = { method: "POST", url: `/local/stop?sandboxes=${sandboxes}` };
  localControlRoute(control)(request as AnyRequest, response as unknown as AnyResponse, OWNER as never);
  return { ...(await promise), done };
}

test("a gateway ends after its sandboxes", async () => {
  expect(await askToStop("stop", 0)).toMatchObject({ status: 202, done: ["stop sandboxes", "end, stop"] });
});

test("a gateway that cannot stop a sandbox goes on and says so", async () => {
  const { status, body, done } = await askToStop("stop", 1);
  expect({ status, done }).toEqual({ status: 409, done: ["stop sandboxes"] });
  expect(JSON.parse(body)).toMatchObject({
    code: "sandboxes_running",
    sandboxes: 1,
    message: "1 sandbox did not stop",
  });
});

test("sandboxes that are kept, or that forbid the end, are not touched", async () => {
  expect((await askToStop("keep", 0)).done).toEqual(["end, keep"]);
  expect(await askToStop("refuse", 0)).toMatchObject({ status: 409, done: [] });
});

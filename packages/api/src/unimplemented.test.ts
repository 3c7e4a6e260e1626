import { Code, type ConnectError, createClient, createRouterTransport } from "@connectrpc/connect";
import { describe, expect, it } from "vitest";
import { compatibility, type RpcName } from "./compatibility.ts";
import { OpenShell } from "./generated/openshell_pb.js";
import { compatibilityMismatches, type OpenShellImpl, unimplementedRest } from "./unimplemented.ts";

const health = () => ({ version: "1" });
const transport = createRouterTransport(({ service }) => service(OpenShell, unimplementedRest({ health })));
const client = createClient(OpenShell, transport);

/** Calls any RPC with one empty message and returns its error. */
async function call(name: RpcName): Promise<ConnectError | undefined> {
  const method = OpenShell.method[name];
  const input = async function* () {
    yield {};
  };
  const run = client[name] as (input: unknown) => unknown;
  const streams = method.methodKind === "client_streaming" || method.methodKind === "bidi_streaming";
  try {
    const answer = run(streams ? input() : {});
    if (method.methodKind === "unary" || method.methodKind === "client_streaming") await answer;
    else for await (const _ of answer as AsyncIterable<unknown>);
    return undefined;
  } catch (error) {
    return error as ConnectError;
  }
}

describe("compatibility table", () => {
  it("has exactly the RPCs of the service", () => {
    expect(Object.keys(compatibility).toSorted()).toEqual(
      OpenShell.methods.map((method) => method.localName).toSorted(),
    );
  });
});

describe("unimplementedRest", () => {
  it("leaves handlers alone", async () => {
    expect(await client.health({})).toMatchObject({ version: "1" });
  });

  const rest = OpenShell.methods.filter((method) => method.localName !== "health");
  it.each(rest.map((method) => [method.name, method.localName as RpcName] as const))(
    "%s answers UNIMPLEMENTED with its name",
    async (name, local) => {
      const error = await call(local);
      expect(error?.code).toBe(Code.Unimplemented);
      expect(error?.rawMessage).toMatch(new RegExp(`^${name} is not .+\\. .+`));
      expect(error?.rawMessage.includes("by design")).toBe(compatibility[local].state === "by-design");
    },
  );
});

describe("compatibilityMismatches", () => {
  it("finds a missing handler and one that the page does not know of", () => {
    const built = Object.keys(compatibility).filter((name) => compatibility[name as RpcName].state === "built");
    const handlers = Object.fromEntries(built.map((name) => [name, () => ({})])) as Partial<OpenShellImpl>;
    expect(compatibilityMismatches(handlers)).toEqual([]);
    const { health: _, ...withoutHealth } = handlers;
    expect(compatibilityMismatches({ ...withoutHealth, peerRelay: handlers.execSandbox as never })).toEqual([
      "health",
      "peerRelay",
    ]);
  });
});

import { spawn } from "node:child_process";
import { join } from "node:path";
import { OpenShell } from "@openshell/api";
import { describe, expect, it } from "vitest";
import { GrpcClient } from "../../../bench/support/grpc.ts";
import { TestGateway, SCOPE as workspaceScope } from "../../support/api.ts";
import { TestInternet } from "../../support/internet/index.ts";
import { mode } from "../../support/mode.ts";

/** Mutations in all; `OPENSHELL_TEST_MUTATIONS=100000` is the long form. */
const MUTATIONS = Number(process.env["OPENSHELL_TEST_MUTATIONS"] ?? 3_200);
const WRITERS = 64;
const PROVIDERS = 16;
const CONNECTIONS = 16;

/** A backup tool that keeps a read transaction open, and something that takes the write lock again and again. */
const DISTURBER = `
  import { DatabaseSync } from "node:sqlite";
  const path = process.argv[1];
  const reader = new DatabaseSync(path, { readOnly: true }), writer = new DatabaseSync(path, { timeout: 5000 });
  const pause = (ms) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
  for (;;) {
    reader.exec("begin"); reader.prepare("select count(*) from providers").get();
    writer.exec("begin immediate"); pause(60); writer.exec("commit");
    pause(200);
    reader.exec("commit");
  }`;

// The store is the same for every user.
describe.skipIf(mode === "user")(`${WRITERS} writers at once`, () => {
  it(`make ${MUTATIONS} changes, each exactly once, and none hears of a locked database`, {
    timeout: 600_000,
  }, async () => {
    await using net = await TestInternet.start();
    await using gateway = await TestGateway.start(net);
    const names = Array.from({ length: PROVIDERS }, (_, index) => `p${index}`);
    await Promise.all(names.map((name) => gateway.createProvider(name, { KEY: "k" })));
    const before = await versions(gateway, names);

    const disturber = spawn(process.execPath, [
      "--input-type=module",
      "-e",
      DISTURBER,
      join(gateway.folders.state, "gateway.db"),
    ]);
    const connections = Array.from({ length: CONNECTIONS }, () => new GrpcClient(gateway.folders.userSocket));
    const applied = new Map<string, number>(names.map((name) => [name, 0]));
    const last = new Map<string, string>();
    const refusals: string[] = [];
    const startedAt = performance.now();
    const write = async (writer: number): Promise<void> => {
      const client = connections[writer % CONNECTIONS]!;
      for (let index = 0; index < MUTATIONS / WRITERS; index += 1) {
        const name = names[(writer + index) % PROVIDERS]!;
        const key = `writer_${writer}`;
        try {
          const provider = { metadata: { name }, config: { [key]: String(index) } };
          await client.unary(OpenShell.method.updateProvider, { workspaceScope, provider });
          applied.set(name, applied.get(name)! + 1);
          last.set(`${name} ${key}`, String(index));
        } catch (error) {
          refusals.push(String(error));
        }
      }
    };
    try {
      await Promise.all(Array.from({ length: WRITERS }, (_, writer) => write(writer)));
    } finally {
      disturber.kill("SIGKILL");
      for (const connection of connections) connection[Symbol.dispose]();
    }
    const seconds = (performance.now() - startedAt) / 1000;
    console.log(`${MUTATIONS} changes by ${WRITERS} writers: ${Math.round(MUTATIONS / seconds)} a second`);

    expect(refusals.slice(0, 3)).toEqual([]);
    const after = await versions(gateway, names);
    for (const name of names)
      expect([name, after.get(name)! - before.get(name)!]).toEqual([name, BigInt(applied.get(name)!)]);
    for (const name of names) {
      const { provider } = await gateway.client.getProvider({ workspaceScope, name });
      const expected = [...last]
        .filter(([of]) => of.startsWith(`${name} `))
        .map(([of, value]) => [of.split(" ")[1], value]);
      expect(Object.fromEntries(Object.entries(provider!.config))).toEqual(Object.fromEntries(expected));
    }
  });
});

async function versions(gateway: TestGateway, names: readonly string[]): Promise<Map<string, bigint>> {
  const found = new Map<string, bigint>();
  for (const name of names) {
    const { provider } = await gateway.client.getProvider({ workspaceScope, name });
    found.set(name, provider!.metadata!.resourceVersion);
  }
  return found;
}

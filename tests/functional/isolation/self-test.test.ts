import type { IsolationLayer, Restrictions } from "@openshell/boundary";
import { type SelfTestResult, selfTest } from "@openshell/supervisor/isolation/self-test.ts";
import { openWitness } from "@openshell/supervisor/isolation/witness.ts";
import { afterEach, describe, expect, it } from "vitest";
import { command, openSandbox, outcome, type TestSandbox, testEnv, testRestrictions } from "../../support/boundary.ts";

/** Layers that hold on every machine these tests run on, as root and as a user. */
const ALWAYS = ["namespaces", "root_view", "network_capture", "landlock", "no_new_privs", "capabilities", "seccomp"];

let sandbox: TestSandbox | undefined;
afterEach(async () => {
  await sandbox?.[Symbol.asyncDispose]();
  sandbox = undefined;
});

/** A sandbox under `restrictions`, tested under what is claimed of it. */
async function tested(
  restrictions: Restrictions = testRestrictions(),
  claims: (layers: readonly IsolationLayer[]) => readonly IsolationLayer[] = (layers) => layers,
  facts: Partial<Parameters<typeof selfTest>[0]["facts"]> = {},
): Promise<SelfTestResult> {
  sandbox ??= await openSandbox({ confirm: false });
  const { boundary } = sandbox;
  const confirmed = boundary.state === "fresh" ? await boundary.confirm(restrictions) : [];
  return again(claims([...boundary.isolation, ...confirmed]), facts);
}

async function again(
  layers: readonly IsolationLayer[],
  facts: Partial<Parameters<typeof selfTest>[0]["facts"]> = {},
  deps: Partial<Parameters<typeof selfTest>[0]> = {},
): Promise<SelfTestResult> {
  const { boundary, plan, launched } = sandbox!;
  return selfTest({
    boundary,
    ...deps,
    facts: {
      layers,
      restrictions: testRestrictions(),
      uid: plan.identity.uid,
      gid: plan.identity.gid,
      netnsCookie: launched.netnsCookie,
      hostPaths: [plan.controlFolder],
      hostSocket: plan.controlSocket,
      gatewayAddresses: ["127.0.0.1:17670", "203.0.113.9:443", "[::1]:17670"],
      capturePorts: boundary.capture.tcp.map(({ port }) => port),
      ...facts,
    },
  });
}

const namesOf = (result: SelfTestResult) => new Set(result.breaches.map(({ layer }) => layer));
const claimAll = (layers: readonly IsolationLayer[]) => layers.map((layer) => ({ ...layer, enforced: true }));

describe("the self-test of isolation", () => {
  it("finds every confining layer in force, each by a canary that it refused", async () => {
    const { layers, breaches } = await tested();
    expect(breaches).toEqual([]);
    expect(layers.filter(({ tested }) => tested).map(({ name }) => name)).toEqual(expect.arrayContaining(ALWAYS));
  });
  it("finds a seccomp filter that is claimed and missing", async () => {
    const result = await tested({ ...testRestrictions(), seccomp: new Uint8Array() }, claimAll);
    expect(namesOf(result)).toContain("seccomp");
    expect(result.layers.find(({ name }) => name === "seccomp")).toMatchObject({ enforced: false, tested: false });
  });
  it("finds a seccomp filter that allows everything", async () => {
    const allow = Uint8Array.from([6, 0, 0, 0, 0, 0, 0xff, 0x7f]);
    const result = await tested({ ...testRestrictions(), seccomp: allow }, claimAll);
    expect(result.breaches.map(({ what }) => what)).toContain("the filter let a packet socket through");
  });
  it("finds Landlock rules that are claimed and not in force", async () => {
    const result = await tested({ ...testRestrictions(), landlock: undefined }, claimAll);
    expect(namesOf(result)).toEqual(new Set(["landlock"]));
    expect(result.breaches.map(({ what }) => what)).toContain("a device node could be made");
  });
  it("finds another network namespace than the launcher's", async () => {
    const result = await tested(undefined, undefined, { netnsCookie: 1n });
    expect(result.breaches).toEqual([{ layer: "namespaces", what: "the network namespace is another one" }]);
  });
  it("finds a folder and a socket of the host that can be seen", async () => {
    const result = await tested(undefined, undefined, { hostPaths: ["/usr"] });
    expect(result.breaches).toEqual([{ layer: "root_view", what: "a folder of the gateway's is visible" }]);
  });
  it("finds an agent with other ids than its own, and more processes than the limit", async () => {
    const result = await tested(
      undefined,
      (layers) => [...layers, { name: "limit_pids", enforced: true, detail: "" }],
      {
        uid: 12,
        restrictions: { ...testRestrictions(), rlimits: [{ resource: 6, soft: 5n, hard: 5n }] },
      },
    );
    expect(namesOf(result)).toEqual(new Set(["capabilities", "limit_pids"]));
  });
  it("believes the host's listener, not the sandbox, about a connection that was made", async () => {
    await tested();
    const { boundary } = sandbox!;
    await using real = await openWitness();
    const listen = `use Socket; socket(S, PF_INET, SOCK_STREAM, 0); bind(S, sockaddr_in(${real.port}, INADDR_LOOPBACK)) or die;
      listen(S, 9); $| = 1; print "on"; sleep 60`;
    const listener = await boundary.spawn(command(["perl", "-e", listen]));
    await new Promise((resolve) => listener.stdout.once("data", resolve));
    const witness = (reached: () => Promise<boolean>) => async () => ({
      ...real,
      reached,
      async [Symbol.asyncDispose]() {},
    });
    const layers = boundary.isolation;
    expect((await again(layers, {}, { openWitness: witness(() => real.reached()) })).breaches).toEqual([]);
    expect((await again(layers, {}, { openWitness: witness(async () => true) })).breaches).toEqual([
      { layer: "network_capture", what: "a listener of the host was reached" },
    ]);
    await listener.signal(9);
  });
  it("leaves nothing inside and asks nothing of a layer that claims nothing", async () => {
    const none = (layers: readonly IsolationLayer[]) => layers.map((layer) => ({ ...layer, enforced: false }));
    const result = await tested({ ...testRestrictions(), landlock: undefined, seccomp: new Uint8Array() }, none);
    expect(result.breaches).toEqual([]);
    expect((await sandbox!.run(["/bin/sh", "-c", "ls -A /tmp /home/agent"])).stdout).not.toContain("canary");
  });
});

describe("an agent that tampers with the self-test", () => {
  it("cannot fake a pass with a preloaded library, a search path, or programs of its own", async () => {
    await tested({ ...testRestrictions(), landlock: undefined }, claimAll);
    const { boundary } = sandbox!;
    // All that an agent of an earlier run can leave: its home, /tmp, and the environment of its processes.
    const spoil = `mkdir -p bin; for p in openshell-init probe sh cat true; do printf '#!/bin/sh\\necho 0\\n' >bin/$p; chmod +x bin/$p; done
      : >/tmp/.openshell-canary; chmod 0 /tmp/.openshell-canary; echo /home/agent/evil.so >ld.so.preload`;
    const process = await boundary.spawn({
      ...command(["/bin/sh", "-c", spoil]),
      env: { ...testEnv, LD_PRELOAD: "/home/agent/evil.so", PATH: `/home/agent/bin:${testEnv.PATH}` },
    });
    void process.closeStdin();
    expect((await outcome(process)).status).toEqual({ kind: "exited", code: 0 });
    const result = await again(claimAll([{ name: "landlock", enforced: true, detail: "abi=7" }]));
    expect(namesOf(result)).toEqual(new Set(["landlock"]));
  });
  it("cannot answer in its place: answers come from a process that it can neither trace nor write to", async () => {
    await tested();
    const { boundary } = sandbox!;
    const meddler = await boundary.spawn(
      command([
        "/bin/sh",
        "-c",
        "echo on; while :; do for p in /proc/[0-9]*; do echo 0 >$p/fd/1; done 2>/dev/null; done",
      ]),
    );
    await new Promise((resolve) => meddler.stdout.once("data", resolve));
    for (let round = 0; round < 5; round++) {
      const answers = await boundary.probe(["capabilities", "filter", "trace 1", "no-new-privileges"]);
      expect(answers.map(Number)).toEqual([0, 2, -1, 1]);
    }
    await meddler.signal(9, "group");
  });
  it("is refused where canaries are malformed or too many", async () => {
    await tested();
    const { boundary } = sandbox!;
    expect(await boundary.probe(["no such word", "tcp", "see"])).toEqual([-38n, -22n, -2n]);
    await expect(boundary.probe([])).rejects.toThrow(RangeError);
    await expect(boundary.probe(Array.from({ length: 65 }, () => "filter"))).rejects.toThrow(RangeError);
    expect(await boundary.probe(Array.from({ length: 64 }, () => "filter"))).toHaveLength(64);
  });
});

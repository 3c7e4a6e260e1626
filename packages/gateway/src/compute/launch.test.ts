import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { create } from "@bufbuild/protobuf";
import { SandboxSpecSchema } from "@openshell/api";
import { SandboxTokenSchema } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import type { StartedSandbox } from "@openshell/drivers/driver.ts";
import { describe, expect, it } from "vitest";
import type { SandboxRecord } from "../store/types.ts";
import { type AttachFacts, attachFacts, attachMessage, type LaunchFacts } from "./launch.ts";

setFlagsFromString("--expose-gc");
const collectGarbage = runInNewContext("gc") as () => void;

const started = {
  boundary: { socketPath: "/run/box.sock", netnsCookie: 5n },
  record: { pid: 4242 },
  layout: {
    home: "/home/agent",
    workingDirectory: "/workspace",
    uid: 1000,
    gid: 1000,
    readOnlyPaths: ["/usr"],
    readWritePaths: ["/workspace"],
    processLimit: 100,
    environment: { HOME: "/home/agent" },
    imageRoot: undefined,
  },
  isolation: [{ name: "landlock", enforced: true, detail: "ABI 7" }],
} as unknown as StartedSandbox;

/** What stands for everything of a record and a launch that nobody needs once it runs. */
const weak: WeakRef<object>[] = [];

function facts(): AttachFacts {
  const spec = create(SandboxSpecSchema, { command: ["true"], policy: { networkPolicies: { a: { name: "a" } } } });
  const policy = spec.policy!;
  const record = {
    id: "11111111-1111-4111-8111-111111111111",
    name: "box",
    workspace: "default",
    generation: 3n,
    annotations: {},
    spec,
    status: {},
  } as unknown as SandboxRecord;
  const launch = {
    nonce: Buffer.from("nonce"),
    ca: { certificatePem: "CERTIFICATE", privateKeyPem: { reveal: () => "KEY" } },
    config: {
      supervisor: { minimumIsolation: ["seccomp"], network: { additionalCa: undefined, resolvers: ["10.0.0.1:53"] } },
    },
    policy,
    volumes: [],
  } as unknown as LaunchFacts;
  for (const one of [record, spec, policy, launch]) weak.push(new WeakRef(one));
  return attachFacts(record, launch, { started, alwaysDenied: ["10.0.0.2"], logDirectory: "/logs/box" });
}

describe("an attach", () => {
  it("says everything that a host needs, each time with the token of that time", () => {
    const kept = facts();
    const token = (text: string) => create(SandboxTokenSchema, { token: text });
    expect(attachMessage(kept, token("first"))).toMatchObject({
      sandboxId: "11111111-1111-4111-8111-111111111111",
      sandboxName: "box",
      workspace: "default",
      generation: 3n,
      token: { token: "first" },
      local: {
        socketPath: "/run/box.sock",
        netnsCookie: 5n,
        initPid: 4242,
        nonce: Buffer.from("nonce"),
        layout: { uid: 1000 },
      },
      inspectionCa: { certificatePem: "CERTIFICATE", privateKeyPem: "KEY" },
      network: { resolvers: ["10.0.0.1:53"], alwaysDenied: ["10.0.0.2"] },
      logDirectory: "/logs/box",
      minimumIsolation: ["seccomp"],
      driverIsolation: [{ name: "landlock", enforced: true, detail: "ABI 7" }],
    });
    expect(attachMessage(kept, token("second")).token?.token).toBe("second");
  });

  it("keeps neither the record nor its policy for as long as the sandbox runs", async () => {
    weak.length = 0;
    const kept = facts();
    // A weak reference holds what it refers to until the turn in which it was made is over.
    await new Promise((resolve) => setImmediate(resolve));
    collectGarbage();
    expect(weak.map((one) => one.deref())).toEqual([undefined, undefined, undefined, undefined]);
    expect(kept.sandbox.name).toBe("box");
  });
});

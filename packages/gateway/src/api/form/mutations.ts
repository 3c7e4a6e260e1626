import type { DeletionOutcome } from "@openshell/api";
import { SandboxPhase } from "@openshell/api";
import type { RpcName } from "@openshell/api/compatibility.ts";
import type { Harness } from "../testing/harness.ts";
import { hasRequestId, inWorkspace, isBuilt, methodOf, rpcNames } from "./calls.ts";

/** One mutation as a caller repeats it. */
export interface Mutation {
  /** Brings the gateway into a state in which `request` succeeds. */
  readonly prepare?: (gateway: Harness) => Promise<unknown>;
  readonly request: Record<string, unknown>;
  /** The same with a value changed, and with the presence of something changed that is empty. */
  readonly changed: Record<string, unknown>;
  readonly presence?: Record<string, unknown>;
  /** The same with map entries in another order. */
  readonly reordered?: Record<string, unknown>;
  /** What a repetition must equal in the first answer. */
  readonly same: (message: never) => unknown;
}

const provider = { metadata: { name: "p" }, type: "generic", credentials: { A: "1", B: "2" } };
export const ready = async (gateway: Harness): Promise<unknown> => {
  await gateway.create({ name: "x", spec: { policy: { version: 1 } } });
  return await gateway.phase(SandboxPhase.READY, "x");
};
const withProvider = (gateway: Harness) => gateway.client.createProvider({ ...inWorkspace("default"), provider });
export const sandboxId = ({ sandbox }: { sandbox: { metadata: { id: string } } }) => sandbox.metadata.id;
const receiptAndSandbox = (message: { sandbox: { metadata: { id: string } }; receipt: { receiptId: string } }) => [
  message.sandbox.metadata.id,
  message.receipt.receiptId,
];
const providerVersion = ({
  provider: { metadata },
  mutationId,
}: {
  provider: { metadata: { id: string; resourceVersion: bigint } };
  mutationId: string;
}) => [metadata.id, metadata.resourceVersion, mutationId];
export const policy = (host: string) => ({
  version: 1,
  networkPolicies: { a: { endpoints: [{ host, port: 443 }], binaries: [{ path: "/x" }] } },
});

/** Every built unary RPC that has a request id. */
export const MUTATIONS: Partial<Record<RpcName, Mutation>> = {
  createSandbox: {
    request: { spec: {}, name: "x", labels: { a: "1", b: "2" } },
    changed: { spec: {}, name: "x", labels: { a: "1", b: "3" } },
    presence: { spec: { template: {} }, name: "x", labels: { a: "1", b: "2" } },
    reordered: { spec: {}, name: "x", labels: { b: "2", a: "1" } },
    same: sandboxId,
  },
  deleteSandbox: {
    prepare: ready,
    request: { name: "x" },
    changed: { name: "x", allowMissing: true },
    same: ({ outcome, sandboxId: id }: { outcome: DeletionOutcome; sandboxId: string }) => [outcome, id],
  },
  stopSandbox: { prepare: ready, request: { name: "x" }, changed: { name: "y" }, same: sandboxId },
  startSandbox: { prepare: ready, request: { name: "x" }, changed: { name: "y" }, same: sandboxId },
  attachSandboxProvider: {
    prepare: async (gateway) => void (await Promise.all([ready(gateway), withProvider(gateway)])),
    request: { sandbox: "x", provider: "p" },
    changed: { sandbox: "x", provider: "q" },
    same: receiptAndSandbox,
  },
  detachSandboxProvider: {
    prepare: async (gateway) => {
      await withProvider(gateway);
      await gateway.create({ name: "x", spec: { policy: { version: 1 }, providers: ["p"] } });
      await gateway.phase(SandboxPhase.READY, "x");
    },
    request: { sandbox: "x", provider: "p" },
    changed: { sandbox: "x", provider: "q" },
    same: receiptAndSandbox,
  },
  createProvider: {
    request: { provider },
    changed: { provider: { ...provider, credentials: { A: "1", B: "3" } } },
    reordered: { provider: { ...provider, credentials: { B: "2", A: "1" } } },
    same: providerVersion,
  },
  updateProvider: {
    prepare: withProvider,
    request: { provider: { metadata: { name: "p" }, credentials: { A: "3", B: "4" } } },
    changed: { provider: { metadata: { name: "p" }, credentials: { A: "3", B: "5" } } },
    reordered: { provider: { metadata: { name: "p" }, credentials: { B: "4", A: "3" } } },
    presence: {
      provider: { metadata: { name: "p" }, credentials: { A: "3", B: "4" } },
      credentialExpirationTimes: { A: {} },
    },
    same: providerVersion,
  },
  deleteProvider: {
    prepare: withProvider,
    request: { name: "p" },
    changed: { name: "p", allowMissing: true },
    same: ({ outcome }: { outcome: DeletionOutcome }) => outcome,
  },
  updateConfig: {
    prepare: ready,
    request: { sandbox: "x", policy: policy("a.example.com"), annotations: { a: "1", b: "2" } },
    changed: { sandbox: "x", policy: policy("b.example.com"), annotations: { a: "1", b: "2" } },
    presence: { sandbox: "x", policy: { ...policy("a.example.com"), process: {} }, annotations: { a: "1", b: "2" } },
    reordered: { sandbox: "x", policy: policy("a.example.com"), annotations: { b: "2", a: "1" } },
    same: ({ version, policyHash, annotations }: { version: number; policyHash: string; annotations: object }) => [
      version,
      policyHash,
      annotations,
    ],
  },
};

/** Every built RPC that has a request id; those among them that are no streams. */
export const built = rpcNames.filter((rpc) => hasRequestId(rpc) && isBuilt(rpc));
export const unary = built.filter((rpc) => methodOf(rpc).methodKind === "unary");

/** Of the workspace `default`. */
export const requestFor = (request: Record<string, unknown>, requestId: string) => ({
  ...inWorkspace("default"),
  ...structuredClone(request),
  requestId,
});

import { type DescField, type DescMessage, ScalarType } from "@bufbuild/protobuf";
import { reflect } from "@bufbuild/protobuf/reflect";
import { Code } from "@connectrpc/connect";
import { OpenShell, ProviderReadinessState, SandboxPhase, SandboxRestartPolicy } from "@openshell/api";
import { emptyAnswers, type FieldPath, fieldPaths, gapsOf, requestGaps } from "@openshell/api/compatibility-fields.ts";
import { ConfigApplyOutcome } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { Harness } from "../testing/harness.ts";
import { call, inWorkspace, isBuilt, methodOf, refusal, rpcNames, sampleOf } from "./calls.ts";

/**
 * Every field of the requests of built RPCs that has its full effect. A field or an RPC that is new is neither here nor among the
 * gaps, and fails the test: whoever builds it says which it is.
 */
const USED: Readonly<Record<string, string>> = {
  WorkspaceSelector: "workspace all_workspaces",
  CreateSandboxRequest: "workspace_scope spec name labels annotations await_main_process_attachment request_id",
  SandboxSpec: "environment template policy providers command tty restart_policy",
  SandboxTemplate: "environment",
  GetSandboxRequest: "workspace_scope name",
  ListSandboxesRequest: "workspace_scope page_size page_token label_selector",
  DeleteSandboxRequest: "workspace_scope name allow_missing request_id",
  StopSandboxRequest: "workspace_scope name request_id",
  StartSandboxRequest: "workspace_scope name request_id",
  BeginRootfsTarStagingRequest: "workspace_scope file_name size_bytes",
  WatchSandboxRequest:
    "workspace_scope sandbox follow_status follow_logs follow_events log_tail_lines event_tail stop_on_terminal since_time log_sources log_min_level resume_after_cursor",
  GetSandboxLogsRequest: "workspace_scope sandbox lines since_time sources min_level",
  ExecSandboxRequest:
    "workspace_scope sandbox command workdir environment execution_timeout stdin tty cols rows no_login_shell request_id",
  ExecSandboxInput: "start stdin resize",
  ExecSandboxWindowResize: "cols rows",
  ListSandboxProvidersRequest: "workspace_scope sandbox page_size page_token",
  AttachSandboxProviderRequest: "workspace_scope sandbox provider expected_resource_version request_id",
  DetachSandboxProviderRequest: "workspace_scope sandbox provider expected_resource_version request_id",
  GetSandboxProviderStatusRequest: "workspace_scope sandbox provider receipt_id",
  CreateProviderRequest: "workspace_scope provider request_id",
  Provider: "metadata type credentials config credential_expiration_times",
  ObjectMeta: "name labels annotations workspace",
  GetProviderRequest: "workspace_scope name",
  ListProvidersRequest: "workspace_scope page_size page_token label_selector",
  UpdateProviderRequest:
    "workspace_scope provider credential_expiration_times clear_credential_expiration_keys request_id",
  DeleteProviderRequest: "workspace_scope name allow_missing request_id",
  GetSandboxConfigRequest: "workspace_scope name",
  UpdateConfigRequest:
    "workspace_scope sandbox policy setting_key setting_value delete_setting global merge_operations expected_resource_version annotations request_id",
  SettingValue: "string_value bool_value",
  GetSandboxPolicyStatusRequest: "workspace_scope sandbox global version",
  ListSandboxPoliciesRequest: "workspace_scope sandbox global page_size page_token",
  GetWorkspaceRequest: "name",
  ListWorkspacesRequest: "page_size page_token label_selector",
};

/** Fields of answers whose value is the empty one by nature in what is done here. */
const ZERO: readonly string[] = [
  "NegotiatedExtensionInfo.protocol_minor",
  "NegotiatedExtensionInfo.required_capabilities",
  "CpuResourceCapabilities.limit_supported",
  "MemoryResourceCapabilities.limit_supported",
  "GpuResourceCapabilities.default_selection_supported",
  "GpuResourceCapabilities.count_selection_supported",
];

const built = rpcNames.filter(isBuilt);

/** Values that a field is tried with where a made-up one would not do. */
const SAMPLE_VALUES: Readonly<Record<string, unknown>> = {
  "SandboxTemplate.resources": { limits: { "nvidia.com/gpu": 1 } },
  "SandboxTemplate.driver_config": { local: { privileged: true } },
  "SandboxSpec.resource_requirements": { gpu: {} },
};

/** Some value that is not empty. */
function sampleValue(field: DescField): unknown {
  const given = SAMPLE_VALUES[`${field.parent.name}.${field.name}`];
  if (given !== undefined) return given;
  switch (field.fieldKind) {
    case "scalar":
      return scalarValue(field.scalar);
    case "enum":
      return Math.max(...field.enum.values.map(({ number }) => number));
    case "message":
      return {};
    case "list":
      return [field.listKind === "message" ? {} : field.listKind === "enum" ? 1 : scalarValue(field.scalar)];
    case "map":
      return { key: field.mapKind === "message" ? {} : field.mapKind === "enum" ? 1 : scalarValue(field.scalar) };
  }
}

function scalarValue(scalar: ScalarType): unknown {
  switch (scalar) {
    case ScalarType.STRING:
      return "x";
    case ScalarType.BOOL:
      return true;
    case ScalarType.BYTES:
      return new Uint8Array([1]);
    case ScalarType.INT64:
    case ScalarType.UINT64:
      return 1n;
    default:
      return 1;
  }
}

/** `request` with a value at the end of the path; messages on the way are kept, or made. */
function withField(request: object, [field, ...rest]: readonly DescField[]): object {
  const name = field!.localName;
  const present = (request as Record<string, object | undefined>)[name];
  if (field!.oneof !== undefined)
    return { ...request, [field!.oneof.localName]: { case: name, value: sampleValue(field!) } };
  return { ...request, [name]: rest.length === 0 ? sampleValue(field!) : withField(present ?? {}, rest) };
}

describe("fields of requests", () => {
  let gateway: Harness;
  beforeAll(async () => {
    gateway = await Harness.open();
    await gateway.create({ name: "x" });
    await gateway.client.createProvider({
      ...inWorkspace("default"),
      provider: { metadata: { name: "p" }, type: "generic", credentials: { TOKEN: "t" } },
    });
  });
  afterAll(() => gateway[Symbol.asyncDispose]());

  it("are all used, refused or the gateway's own, as the compatibility page says", () => {
    const reachable = built.flatMap((rpc) => fieldPaths(methodOf(rpc).input, (key) => key in requestGaps));
    const used = new Set(
      Object.entries(USED).flatMap(([type, names]) => names.split(" ").map((name) => `${type}.${name}`)),
    );
    const said = [...used, ...Object.keys(requestGaps)].toSorted();
    expect(said).toEqual([...new Set(reachable.map(({ key }) => key))].toSorted());
    expect(said).toEqual([...new Set(said)]);
  });

  const refused = built.flatMap((rpc) =>
    gapsOf(rpc)
      .filter(({ gap }) => gap.answer !== "ignored")
      .map((field) => ({ rpc, ...field })),
  );

  it.each(refused)("$rpc refuses $path, naming it", async ({ rpc, path, fields, gap }) => {
    // A setting stands in place of a policy.
    const setting = { policy: undefined, settingKey: "ocsf_json_enabled" };
    const alone = path.startsWith("setting_value.") ? setting : {};
    const request = withField(sampleOf(rpc, alone), fields) as Record<string, unknown>;
    const { code, fields: named, message } = await refusal(gateway, rpc, request);
    expect(Code[code]).toBe(gap.answer === "UNIMPLEMENTED" ? "Unimplemented" : "InvalidArgument");
    expect(named.length).toBeGreaterThan(0);
    for (const field of named) expect(field.startsWith(path)).toBe(true);
    expect(message.startsWith(path)).toBe(true);
  });

  const own = built.flatMap((rpc) =>
    gapsOf(rpc)
      .filter(({ gap }) => gap.answer === "ignored")
      .map((field) => ({ rpc, ...field })),
  );

  it.each(own.filter(({ rpc }) => rpc === "createProvider"))(
    "$rpc does not take $path from its caller",
    async ({ rpc, fields, key }) => {
      const name = `own-${key.replace(/\W|_/g, "-").toLowerCase()}`;
      const provider = { metadata: { name }, type: "generic", credentials: { [key.replace(/\W/g, "_")]: "t" } };
      const plain = await call(
        gateway,
        rpc,
        sampleOf(rpc, { provider: { ...provider, metadata: { name: `${name}-0` } } }),
      );
      const { error, message } = await call(gateway, rpc, withField(sampleOf(rpc, { provider }), fields) as never);
      expect(error).toBeUndefined();
      const value = (answer: unknown) =>
        (answer as { provider: { metadata: Record<string, unknown> } }).provider.metadata[fields.at(-1)!.localName];
      const absent = value(plain.message) === undefined;
      expect(absent ? value(message) : typeof value(message)).toBe(absent ? undefined : typeof value(plain.message));
      expect(value(message)).not.toEqual(fields.at(-1)!.fieldKind === "message" ? { seconds: 0n, nanos: 0 } : "x");
    },
  );
});

describe("fields of answers", () => {
  const seen = new Set<string>();

  /** Notes every field that is set. */
  function note(schema: DescMessage, message: unknown): void {
    const reflected = reflect(schema, message as never);
    for (const field of schema.fields) {
      if (!reflected.isSet(field)) continue;
      seen.add(`${schema.name}.${field.name}`);
      const inner = field.message;
      if (inner === undefined || inner.typeName.startsWith("google.protobuf.") || inner.name === "SandboxPolicy")
        continue;
      const plain = message as Record<string, unknown>;
      const value =
        field.oneof === undefined ? plain[field.localName] : (plain[field.oneof.localName] as { value: unknown }).value;
      if (field.fieldKind === "list") for (const item of value as unknown[]) note(inner, item);
      else if (field.fieldKind === "map") for (const item of Object.values(value as object)) note(inner, item);
      else note(inner, value);
    }
  }

  /** Does with a gateway what fills answers, and notes all of them. */
  async function everything(gateway: Harness): Promise<void> {
    gateway.caller = { ...gateway.caller, roles: ["r"], scopes: ["s"] };
    const { client } = gateway;
    const scope = inWorkspace("default");
    const answer = async (rpc: (typeof built)[number], request: object = {}) => {
      const { error, message } = await call(gateway, rpc, sampleOf(rpc, { ...request }));
      if (error !== undefined) throw error;
      note(methodOf(rpc).output, message);
    };
    const stream = async (rpc: (typeof built)[number], messages: AsyncIterable<unknown>, count: number) => {
      for await (const message of messages) {
        note(methodOf(rpc).output, message);
        count -= 1;
        if (count === 0) break;
      }
    };
    const meta = { labels: { l: "v" }, annotations: { a: "v" } };
    const expiry = { seconds: 9_000_000_000n, nanos: 0 };
    const provider = {
      metadata: { name: "p", ...meta },
      type: "generic",
      credentials: { TOKEN: "t" },
      config: { C: "c" },
      credentialExpirationTimes: { TOKEN: expiry },
      profileWorkspace: "default",
    };
    for (const rpc of ["health", "getCurrentUser", "getGatewayInfo"] as const) await answer(rpc);
    await answer("createProvider", { provider });
    await answer("createProvider", {
      provider: { ...provider, metadata: { name: "q" }, credentials: { OTHER: "t" }, credentialExpirationTimes: {} },
    });
    for (const rpc of ["getProvider", "updateProvider"] as const) await answer(rpc, { name: "p" });
    await answer("listProviders", { pageSize: 1 });
    gateway.middleware.push({
      name: "guard",
      endpoint: "http://guard.example:1",
      ca: { path: "/ca.pem", pem: "PEM" },
      audience: "urn:guard",
      allowInsecureTransport: true,
      maxPayloadBytes: 1_024,
      timeoutMs: 250,
    });
    const spec = {
      environment: { A: "1" },
      template: {
        environment: { B: "2" },
        resources: { limits: { cpu: "1" } },
        driverConfig: { local: { volumes: ["/a:/b"] } },
      },
      policy: {
        version: 1,
        networkPolicies: { a: { endpoints: [{ host: "a.example.com", port: 443 }], binaries: [{ path: "/x" }] } },
        networkMiddlewares: { m: { middleware: "guard", endpoints: { include: ["a.example.com"] } } },
      },
      providers: ["p", "q"],
      command: ["true"],
      tty: true,
      restartPolicy: SandboxRestartPolicy.ON_FAILURE,
    };
    await answer("beginRootfsTarStaging");
    await answer("createSandbox", { name: "x", spec, ...meta });
    const { metadata } = await gateway.phase(SandboxPhase.READY, "x");
    await answer("getSandbox");
    await answer("listSandboxProviders", { pageSize: 1 });
    await answer("detachSandboxProvider");
    await answer("attachSandboxProvider");
    const observed = async () =>
      (await client.getSandboxProviderStatus({ ...scope, sandbox: "x", provider: "p" })).status;
    await gateway.until(async () => (await observed())?.state === ProviderReadinessState.READY, "the provider");
    await answer("getSandboxProviderStatus");
    gateway.host!.quiet = true;
    const replaced = await client.detachSandboxProvider({ ...scope, sandbox: "x", provider: "p" });
    await answer("attachSandboxProvider");
    await answer("getSandboxProviderStatus", { receiptId: replaced.receipt!.receiptId });
    gateway.host!.quiet = false;
    await answer("updateProvider");
    await answer("updateConfig", {
      policy: { ...spec.policy, networkPolicies: {} },
      annotations: { a: "w" },
    });
    const setting = { policy: undefined, settingKey: "ocsf_json_enabled" };
    const on = { value: { case: "boolValue", value: true } };
    await answer("updateConfig", { ...setting, settingValue: on });
    await answer("updateConfig", { ...setting, deleteSetting: true });
    await client.updateConfig({
      global: true,
      settingKey: "proposal_approval_mode",
      settingValue: { value: { case: "stringValue", value: "auto" } },
    });
    await client.updateConfig({ global: true, settingKey: "ocsf_json_enabled", settingValue: on as never });
    await client.updateConfig({ global: true, policy: { version: 1 } });
    await answer("getSandboxConfig");
    await client.updateConfig({ global: true, settingKey: "policy", deleteSetting: true });
    for (const rpc of ["getSandboxPolicyStatus", "getSandboxConfig", "getGatewayConfig"] as const) await answer(rpc);
    await answer("listSandboxPolicies", { pageSize: 1 });
    gateway.host!.outcomeOf = () => ConfigApplyOutcome.FAILED_RETAINED_LAST_KNOWN_GOOD;
    await answer("updateConfig", { policy: spec.policy });
    await answer("getSandboxPolicyStatus");
    const supervisor = gateway.host!.attached.get(metadata!.id)!;
    const time = { seconds: 1n, nanos: 0 };
    const line = { level: "INFO", message: "m", target: "t", source: "sandbox", fields: { f: "1" }, time };
    supervisor.send({ case: "logs", value: { lines: [line] } });
    await gateway.until(async () => {
      const { logs } = await client.getSandboxLogs({ ...scope, sandbox: "x" });
      return logs.some(({ message }) => message === "m");
    }, "the line");
    await answer("getSandboxLogs");
    for (const follow of [{ followLogs: true }, { followEvents: true, eventTail: 10 }])
      await stream("watchSandbox", client.watchSandbox({ ...scope, sandbox: "x", ...follow }), 2);
    gateway.host!.relay = async (relay) => {
      await relay.down.next();
      await relay.send({ case: "stdout", value: { data: Buffer.from("o") } });
      await relay.send({ case: "stderr", value: { data: Buffer.from("e") } });
      await relay.send({ case: "exit", value: { exitCode: 3 } });
    };
    await stream("execSandbox", client.execSandbox({ ...scope, sandbox: "x", command: ["c"] }), 3);
    await answer("stopSandbox");
    await answer("startSandbox");
    await gateway.phase(SandboxPhase.READY, "x");
    gateway.host!.attached.get(metadata!.id)!.exit(7);
    const again = async () => (await gateway.get("x")).status!;
    await gateway.until(async () => (await again()).restartCount === 1, "a restart");
    await gateway.phase(SandboxPhase.READY, "x");
    gateway.host!.attached.get(metadata!.id)!.exit(7);
    await gateway.until(async () => (await again()).exitCode === 7, "the wait for the second one");
    await answer("getSandbox");
    await answer("createSandbox", { name: "y" });
    await answer("listSandboxes", { pageSize: 1 });
    // Held back by its supervisor.
    gateway.host!.bootstrapOutcome = ConfigApplyOutcome.FAILED_CLOSED;
    await answer("createSandbox", { name: "z" });
    await gateway.until(
      async () => (await gateway.get("z")).status?.configurationAdmission?.error !== undefined,
      "a refused configuration",
    );
    await answer("getSandboxConfig", { name: "z" });
    await answer("getSandbox", { name: "z" });
    const now = { id: "0", createdAt: 1, ...meta, phase: "active" } as const;
    await gateway.store.write(
      gateway.store.workspaces.create({ ...now, name: "w" }),
      gateway.store.workspaces.setPhase("w", "any", "terminating", 2),
    );
    await answer("getWorkspace", { name: "w" });
    await answer("listWorkspaces", { pageSize: 1 });
    await answer("deleteSandbox");
    await answer("deleteProvider", { name: "none", allowMissing: true });
  }

  it("are all filled by something, or the compatibility page says that they stay empty", async () => {
    await using gateway = await Harness.open();
    await everything(gateway);
    const warning = ["SandboxStreamEvent.warning", "SandboxStreamWarning.message"];
    const stop = (key: string): boolean => key in emptyAnswers;
    const possible = new Set(
      built.flatMap((rpc) => fieldPaths(OpenShell.method[rpc].output, stop)).map(({ key }: FieldPath) => key),
    );
    const silent = [...possible].filter(
      (key) =>
        !seen.has(key) &&
        !(key in emptyAnswers) &&
        !(key in requestGaps) &&
        !ZERO.includes(key) &&
        !warning.includes(key),
    );
    const below = silent.filter(
      (key) => !/^(?:ResourceRequirements|GpuResourceRequirements|CredentialHandle)\./.test(key),
    );
    expect(below).toEqual([]);
    expect(Object.keys(emptyAnswers).filter((key) => seen.has(key) || !possible.has(key))).toEqual([]);
  });
});

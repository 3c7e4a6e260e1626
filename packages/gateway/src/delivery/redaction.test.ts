import { inspect } from "node:util";
import { create, type DescField, type DescMessage, ScalarType, toBinary } from "@bufbuild/protobuf";
import { SandboxPhase } from "@openshell/api";
import {
  ConfigApplyOutcome,
  file_openshell_supervisor_v1_supervisor as protocol,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { describeError } from "@openshell/base";
import pino from "pino";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { Harness } from "../api/testing/harness.ts";
import { SessionRefused } from "../sessions/failure.ts";
import { redactSecrets } from "./redaction.ts";
import { captureSnapshot } from "./snapshot.ts";

const SECRET = "s3cr3t-value-0123456789";

/** Everything by which a value may be printed. */
function prints(value: unknown): string {
  const lines: string[] = [];
  const log = pino({ level: "trace" }, { write: (line: string) => void lines.push(line) });
  log.info({ value }, "a value");
  log.error({ err: value }, "an error");
  log.info(value as object);
  const bigints = (_key: string, one: unknown) => (typeof one === "bigint" ? one.toString() : one);
  return [
    inspect(value, { depth: 20, showHidden: false }),
    inspect({ nested: [value] }, { depth: 20 }),
    JSON.stringify(value, bigints) ?? "",
    String(value),
    describeError(value),
    ...lines,
  ].join("\n");
}

const isSecret = (field: DescField): boolean => field.proto.options?.debugRedact === true;
const holdsSecret = (desc: DescMessage, seen: readonly DescMessage[] = []): boolean =>
  !seen.includes(desc) &&
  desc.fields.some(
    (field) => isSecret(field) || (field.message !== undefined && holdsSecret(field.message, [...seen, desc])),
  );

/** A message with the secret wherever the schema says that one is. Of a oneof, the member `index` counts. */
function filled(desc: DescMessage, index: number): Record<string, unknown> {
  const message: Record<string, unknown> = {};
  for (const field of desc.fields) {
    let value: unknown;
    if (isSecret(field)) value = field.scalar === ScalarType.BYTES ? Buffer.from(SECRET) : SECRET;
    else if (field.message !== undefined && holdsSecret(field.message)) {
      const inner = create(field.message, filled(field.message, index) as never);
      value = field.fieldKind === "list" ? [inner] : field.fieldKind === "map" ? { key: inner } : inner;
    }
    if (value === undefined) continue;
    if (field.oneof === undefined) message[field.localName] = value;
    else if (field.oneof.fields.indexOf(field) % 10 === index)
      message[field.oneof.localName] = { case: field.localName, value };
  }
  return message;
}

describe("messages with secrets", () => {
  const cases = protocol.messages
    .filter((desc) => holdsSecret(desc))
    .flatMap((desc) => Array.from({ length: 10 }, (_, index) => [desc.name, index, desc] as const));

  it("are found", () => {
    expect(new Set(cases.map(([name]) => name))).toEqual(
      new Set([
        "HostDownlink",
        "AttachSandbox",
        "SandboxToken",
        "LocalBoundary",
        "InspectionCa",
        "SupervisorDownlink",
        "SessionAccepted",
        "ConfigUpdate",
        "ProviderEnvironment",
        "ProviderValue",
      ]),
    );
  });

  it.each(cases)("%s (member %i) is printed without them, and sent with them", (_name, index, desc) => {
    const message = create(desc, filled(desc, index) as never);
    const before = Buffer.from(toBinary(desc, message));
    redactSecrets(desc, message);
    const text = prints(message);
    expect(text).not.toContain(SECRET);
    expect(text).not.toContain(inspect(Buffer.from(SECRET)).slice(8, 40));
    expect(Buffer.from(toBinary(desc, message)).equals(before)).toBe(true);
  });
});

describe("a gateway that delivers secrets", () => {
  let gateway: Harness;
  beforeEach(async () => {
    gateway = await Harness.open();
  });
  afterEach(() => gateway[Symbol.asyncDispose]());

  it("prints none of them: neither its snapshots, sessions, errors and events, nor its log at its most talkative", async () => {
    const provider = { metadata: { name: "p" }, type: "generic", credentials: { TOKEN: SECRET } };
    await gateway.client.createProvider({ workspaceScope: gateway.scope, provider });
    const rule = (host: string) => ({
      endpoints: [
        { host, port: 443, protocol: "rest", access: 1, enforcement: 1, credentialBinding: { provider: "p" } },
      ],
      binaries: [{ path: "/x" }],
    });
    const policy = (host: string) => ({ version: 1, networkPolicies: { api: rule(host) } });
    const spec = { providers: ["p"], policy: policy("a.example.com") };
    const { metadata } = await gateway.create({ spec });
    await gateway.phase(SandboxPhase.READY);
    const supervisor = gateway.host!.attached.get(metadata!.id)!;
    expect(supervisor.accepted?.providerEnvironment?.values[0]?.value).toBe(SECRET);
    const captured = await captureSnapshot(gateway.deps, metadata!.id);
    const environment = captured!.snapshot.environment();
    expect(environment.values[0]?.value).toBe(SECRET);
    for (const outcome of [ConfigApplyOutcome.FAILED_CLOSED, ConfigApplyOutcome.APPLIED, ConfigApplyOutcome.DEGRADED]) {
      gateway.host!.outcomeOf = () => outcome;
      await gateway.client.updateProvider({
        workspaceScope: gateway.scope,
        provider: { metadata: { name: "p" }, credentials: { TOKEN: `${SECRET}-${outcome}` } },
      });
      await gateway.client.updateConfig({
        workspaceScope: gateway.scope,
        sandbox: "box",
        policy: policy(`o${outcome}.example.com`),
      });
    }
    const logs = await gateway.client.getSandboxLogs({ workspaceScope: gateway.scope, sandbox: "box" });
    const operations = await gateway.store.operations.list(metadata!.id, { limit: 100 });
    const failure = new SessionRefused("invalid_message", "no", { next: "" });
    failure.cause = environment;
    const everything = {
      captured,
      environment,
      wrapped: { case: "accepted", value: { providerEnvironment: environment } },
      failure,
      error: new Error("failed", { cause: { environment } }),
      session: gateway.deps,
      sandbox: await gateway.get(),
      operations,
      logs,
    };
    for (const [name, value] of Object.entries(everything)) expect(prints(value), name).not.toContain(SECRET);
    expect(gateway.logLines.join("")).not.toContain(SECRET);
    expect(gateway.logLines.length).toBeGreaterThan(5);
  });
});

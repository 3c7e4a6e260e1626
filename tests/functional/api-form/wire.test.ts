import { readFileSync } from "node:fs";
import { type ClientHttp2Session, connect as connectHttp2, type SecureClientSessionOptions } from "node:http2";
import { connect } from "node:net";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { create, type DescMethod, getOption, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { BinaryWriter, WireType } from "@bufbuild/protobuf/wire";
import { Code } from "@connectrpc/connect";
import {
  CreateSandboxRequestSchema,
  GetSandboxRequestSchema,
  ListSandboxesRequestSchema,
  OpenShell,
  WorkspaceSelectorSchema,
} from "@openshell/api";
import { compatibility, type RpcName } from "@openshell/api/compatibility.ts";
import { ERROR_DOMAIN } from "@openshell/api/errors.ts";
import { authorization } from "@openshell/api/generated/options_pb.js";
import { issueLeaf } from "@openshell/gateway/pki/issue.ts";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { GatewayProcess } from "../gateway/gateway-process.ts";
import { frame, type RawAnswer, rawCall } from "./raw-call.ts";

const MiB = 1024 * 1024;
const HEADER_LIMIT = 8 * 1024;

let gateway: GatewayProcess;
let session: ClientHttp2Session;

beforeAll(async () => {
  gateway = new GatewayProcess();
  await gateway.started();
  session = connectHttp2("http://local", { createConnection: () => connect(gateway.userSocket) });
});

afterAll(async () => {
  session?.destroy();
  await gateway?.[Symbol.asyncDispose]();
});

const pathOf = (method: Pick<DescMethod, "name">): string => `/${OpenShell.typeName}/${method.name}`;
const modeOf = (method: DescMethod): string => getOption(method, authorization).authMode;
const call = (method: Pick<DescMethod, "name">, message: Uint8Array, headers?: Record<string, string>) =>
  rawCall(session, pathOf(method), frame(message), headers);
const scope = { workspaceScope: { selection: { case: "workspace", value: "default" } } } as const;
const encode = <
  Desc extends typeof GetSandboxRequestSchema | typeof CreateSandboxRequestSchema | typeof ListSandboxesRequestSchema,
>(
  schema: Desc,
  init: MessageInitShape<Desc>,
) => toBinary(schema, create(schema, init));

/** What holds for every error whatever its cause. */
function expectWellFormed({
  httpStatus,
  code,
  message,
  envelope,
  trailerBytes,
  reason,
  domain,
  fields,
}: RawAnswer): void {
  expect(httpStatus).toBe(200);
  expect(code).toBeGreaterThan(0);
  expect(code).toBeLessThanOrEqual(16);
  expect(message).not.toBe("");
  // No trace, no path of this machine, nothing that a terminal obeys, no "[object Object]".
  expect(message).not.toMatch(
    /\n\s+at |node:internal|\.(?:ts|mjs):\d|\[object |undefined|[\u0000-\u0009\u000b-\u001f\u007f-\u009f]/,
  );
  expect(trailerBytes).toBeLessThan(HEADER_LIMIT);
  if (envelope !== undefined) {
    expect([envelope.code, envelope.message]).toEqual([code, message]);
    expect(envelope.details.length).toBeGreaterThan(0);
  }
  if (reason !== undefined) expect(domain).toBe(ERROR_DOMAIN);
  if (code === Code.InvalidArgument) {
    expect(reason).toBe("INVALID_ARGUMENT");
    expect(fields.length).toBeGreaterThan(0);
  }
}

describe("every RPC, sent an empty request", () => {
  test.each(OpenShell.methods.map((method) => [method.name, method] as const))("%s", async (_, method) => {
    const answer = await call(method, new Uint8Array());
    if (answer.code === 0) {
      expect(compatibility[method.localName as RpcName].state).toBe("built");
      expect(method.input.fields.every(({ name }) => name !== "workspace_scope")).toBe(true);
      return;
    }
    expectWellFormed(answer);
    const state = compatibility[method.localName as RpcName].state;
    if (modeOf(method) === "operator") expect(answer.code).toBe(Code.PermissionDenied);
    else if (state !== "built") {
      expect(answer.code).toBe(Code.Unimplemented);
      expect(answer.message.startsWith(`${method.name} is not `)).toBe(true);
    } else {
      expect(answer.code).toBe(Code.InvalidArgument);
      expect(answer.fields.join()).toMatch(/workspace_scope|start|name/);
    }
  });
});

describe("a request of a 0.0.x client, whose workspace is text", () => {
  const scoped = OpenShell.methods.flatMap((method) => {
    const field = method.input.fields.find(({ message }) => message === WorkspaceSelectorSchema);
    return field === undefined ? [] : [[method.name, method, field.number] as const];
  });

  test.each(scoped)("%s refuses it, naming workspace_scope", async (_, method, number) => {
    for (const workspace of ["default", "abcdefghi", "x"]) {
      const message = new BinaryWriter().tag(number, WireType.LengthDelimited).string(workspace).finish();
      const answer = await call(method, message);
      expectWellFormed(answer);
      const built = compatibility[method.localName as RpcName].state === "built";
      if (modeOf(method) === "operator" && answer.code === Code.PermissionDenied) continue;
      // What cannot be decoded is refused before it is known what would answer it.
      if (!built && answer.code === Code.Unimplemented) continue;
      expect([workspace, answer.code, answer.fields[0]]).toEqual([workspace, Code.InvalidArgument, "workspace_scope"]);
      expect(answer.message).toMatch(/^workspace_scope: /);
    }
  });

  test("nothing was made in any workspace meanwhile", async () => {
    const { sandboxes } = await gateway
      .local()
      .listSandboxes({ workspaceScope: { selection: { case: "allWorkspaces", value: {} } } });
    expect(sandboxes).toEqual([]);
  });
});

describe("requests that are no calls of this API", () => {
  const { getSandbox, listSandboxes, createSandbox } = OpenShell.method;

  test.each([
    ["a method that does not exist", `/${OpenShell.typeName}/GetSandbax`],
    ["a service that does not exist", "/openshell.inference.v1.Inference/GetInferenceBundle"],
    ["another letter case", `/${OpenShell.typeName}/getSandbox`],
    ["a path below a method", `/${OpenShell.typeName}/GetSandbox/x`],
    ["no path at all", "/"],
  ])("%s is UNIMPLEMENTED", async (_, path) => {
    const answer = await rawCall(session, path, frame(new Uint8Array()));
    expectWellFormed(answer);
    expect(answer.code).toBe(Code.Unimplemented);
    expect(answer.message).toContain(path);
  });

  test("bytes that are no message are INVALID_ARGUMENT, naming what can be named", async () => {
    for (const [bytes, field] of [
      [new Uint8Array([0xff]), /request|workspace_scope/],
      [
        new BinaryWriter()
          .tag(1, WireType.LengthDelimited)
          .bytes(new Uint8Array([0xff]))
          .finish(),
        /name|workspace_scope/,
      ],
    ] as const) {
      const answer = await call(getSandbox, bytes);
      expectWellFormed(answer);
      expect([answer.code, answer.fields.join()]).toEqual([Code.InvalidArgument, expect.stringMatching(field)]);
    }
  });

  test("a message above 4 MiB is RESOURCE_EXHAUSTED, without a promise that it helps to try again", async () => {
    const answer = await call(getSandbox, new Uint8Array(4 * MiB + 1));
    expectWellFormed(answer);
    expect(answer.code).toBe(Code.ResourceExhausted);
    expect(answer.message).toMatch(/4194304|4 MiB/);
    expect(answer.envelope?.details ?? []).not.toContainEqual(
      expect.objectContaining({ $typeName: "google.rpc.RetryInfo" }),
    );
  });

  test("a compressed message that grows beyond the limit is refused, and one within it is read", async () => {
    const gzip = { "grpc-encoding": "gzip" };
    const bomb = await rawCall(session, pathOf(getSandbox), frame(gzipSync(new Uint8Array(64 * MiB)), true), gzip);
    expectWellFormed(bomb);
    expect(bomb.code).toBe(Code.ResourceExhausted);
    const small = gzipSync(encode(GetSandboxRequestSchema, { ...scope, name: "none" }));
    const answer = await rawCall(session, pathOf(getSandbox), frame(small, true), gzip);
    expect([answer.code, answer.message]).toEqual([Code.NotFound, "sandbox not found"]);
  });

  test("an encoding that nobody knows is UNIMPLEMENTED", async () => {
    const answer = await rawCall(session, pathOf(getSandbox), frame(new Uint8Array([1]), true), {
      "grpc-encoding": "snappy",
    });
    expectWellFormed(answer);
    expect(answer.code).toBe(Code.Unimplemented);
  });

  test("a call without its message, and one with two, are refused", async () => {
    const message = encode(GetSandboxRequestSchema, { ...scope, name: "none" });
    for (const body of [
      new Uint8Array(),
      Buffer.concat([frame(message), frame(message)]),
      frame(message).subarray(0, 7),
    ]) {
      const answer = await rawCall(session, pathOf(getSandbox), body);
      expect(answer.httpStatus).toBe(200);
      expect([Code.InvalidArgument, Code.Unimplemented, Code.Internal]).toContain(answer.code);
      expect(answer.message).not.toBe("");
    }
  });

  test.each(["1", "H", "-1S", "1.5S", "123456789S", "1s", ""])(
    "the time limit %j is no time limit",
    async (timeout) => {
      const message = encode(GetSandboxRequestSchema, { ...scope, name: "none" });
      const answer = await call(getSandbox, message, { "grpc-timeout": timeout });
      // A proxy may drop an empty header; every other one is refused by name.
      if (timeout === "" && answer.code === Code.NotFound) return;
      expect(answer.httpStatus).toBe(200);
      expect(answer.code).toBe(Code.InvalidArgument);
      expect(answer.message).toMatch(/timeout/);
    },
  );

  test("another content type is not gRPC's business", async () => {
    for (const contentType of ["text/plain", "application/grpcish"]) {
      const answer = await rawCall(session, pathOf(getSandbox), frame(new Uint8Array()), {
        "content-type": contentType,
      });
      expect([404, 405, 415]).toContain(answer.httpStatus);
    }
  });

  test("what a caller chose comes back readable: umlauts whole, controls escaped, megabytes cut", async () => {
    const labels = { "schlüssel ä": "x", "\u001b[31mrot\n": "x", ["k".repeat(1_000_000)]: "x" };
    const answer = await call(createSandbox, encode(CreateSandboxRequestSchema, { ...scope, spec: {}, labels }));
    expectWellFormed(answer);
    expect(answer.fields.slice(0, 2)).toEqual(["labels[schlüssel ä]", "labels[\\x1b[31mrot\\x0a]"]);
    expect(answer.message).toContain("labels[schlüssel ä]");
    const name = "ü".repeat(1_000_000);
    const missing = await call(getSandbox, encode(GetSandboxRequestSchema, { ...scope, name }));
    expectWellFormed(missing);
    expect([missing.code, missing.message]).toEqual([Code.NotFound, "sandbox not found"]);
    const token = await call(listSandboxes, encode(ListSandboxesRequestSchema, { ...scope, pageToken: name }));
    expectWellFormed(token);
    expect(token.fields).toEqual(["page_token"]);
  });
});

describe("over Connect with JSON", () => {
  const post = async (rpc: string, body: object) => {
    const headers = { "content-type": "application/json", "connect-protocol-version": "1" };
    const { status, body: answer } = await gateway.http(
      `/openshell.v1.OpenShell/${rpc}`,
      "POST",
      headers,
      JSON.stringify(body),
    );
    return { status, ...(JSON.parse(answer) as { code?: string; message?: string; details?: { type: string }[] }) };
  };
  const workspaceScope = { workspace: "default" };

  test("a key that a request does not have is refused by name, in reading requests too", async () => {
    for (const [rpc, extra] of [
      ["GetSandbox", { nmae: "x" }],
      ["CreateSandbox", { spec: { environmant: {} } }],
      ["GetSandbox", { workspaceScope: "default" }],
    ] as const) {
      const { status, code, message } = await post(rpc, { workspaceScope, name: "x", ...extra });
      expect([status, code]).toEqual([400, "invalid_argument"]);
      expect(message).toMatch(/nmae|environmant|WorkspaceSelector/);
    }
  });

  test("times and durations are RFC 3339 and seconds, and 64-bit numbers are text", async () => {
    const bad = await post("GetSandboxLogs", { workspaceScope, sandbox: "x", sinceTime: "yesterday" });
    expect([bad.status, bad.code]).toEqual([400, "invalid_argument"]);
    const good = await post("GetSandboxLogs", { workspaceScope, sandbox: "x", sinceTime: "2026-01-02T03:04:05.678Z" });
    expect([good.status, good.code, good.message]).toEqual([404, "not_found", "sandbox not found"]);
  });

  test("an error has the same text and details as over gRPC", async () => {
    const { status, code, message, details } = await post("GetSandbox", { name: "x" });
    expect([status, code]).toEqual([400, "invalid_argument"]);
    expect(message).toMatch(/^workspace_scope: is required/);
    expect(details?.map(({ type }) => type)).toEqual(["google.rpc.ErrorInfo", "google.rpc.BadRequest"]);
  });
});

describe("over TLS", () => {
  const dial = (options: SecureClientSessionOptions): ClientHttp2Session => {
    const { gateway_endpoint: endpoint } = JSON.parse(gateway.read("metadata.json")) as { gateway_endpoint: string };
    return connectHttp2(endpoint, { ca: gateway.read("mtls/ca.crt"), ...options });
  };

  test("nobody without a certificate learns anything: every RPC but Health is UNAUTHENTICATED, unbuilt ones too", async () => {
    const anonymous = dial({});
    try {
      for (const method of OpenShell.methods) {
        const answer = await rawCall(anonymous, pathOf(method), frame(new Uint8Array()));
        const open = modeOf(method) === "unauthenticated";
        expect([method.name, answer.code]).toEqual([method.name, open ? 0 : Code.Unauthenticated]);
        if (!open) expectWellFormed(answer);
      }
      const garbage = await rawCall(anonymous, pathOf(OpenShell.method.getSandbox), frame(new Uint8Array([0xff])));
      expect([Code.Unauthenticated, Code.InvalidArgument]).toContain(garbage.code);
    } finally {
      anonymous.destroy();
    }
  });

  test("a bearer token does not stand in for a certificate", async () => {
    const anonymous = dial({});
    try {
      const authorizationHeader = { authorization: "Bearer eyJhbGciOiJub25lIn0.e30." };
      const answer = await rawCall(
        anonymous,
        pathOf(OpenShell.method.getCurrentUser),
        frame(new Uint8Array()),
        authorizationHeader,
      );
      expect(answer.code).toBe(Code.Unauthenticated);
      expect(answer.message).not.toContain("eyJ");
    } finally {
      anonymous.destroy();
    }
  });

  /** A connection with a client certificate of the gateway's CA, made for the role of its organizational unit. */
  const as = async (role: string | undefined): Promise<ClientHttp2Session> => {
    const authority = {
      certificatePem: readFileSync(join(gateway.paths.state, "keys", "ca.crt"), "utf8"),
      privateKeyPem: readFileSync(join(gateway.paths.state, "keys", "ca.key"), "utf8"),
    };
    const unit = role === undefined ? {} : { organizationalUnit: role };
    const leaf = {
      authority,
      commonName: `a ${role}`,
      ...unit,
      use: "client",
      names: [],
      days: 1,
      now: Date.now(),
    } as const;
    const { certificatePem, privateKeyPem } = await issueLeaf(leaf);
    return dial({ cert: certificatePem, key: privateKeyPem });
  };

  test.each([
    ["an operator", "operator"],
    ["nobody's role", "visitor"],
    ["no role", undefined],
  ])("a certificate of %s opens its own methods and no other, built or not", async (_, role) => {
    const caller = await as(role);
    try {
      for (const method of OpenShell.methods) {
        const mode = modeOf(method);
        const { code, message } = await rawCall(caller, pathOf(method), frame(new Uint8Array()));
        const expected =
          mode === "unauthenticated"
            ? 0
            : mode === "operator" && role === "operator"
              ? Code.Unimplemented
              : Code.PermissionDenied;
        expect([method.name, code, message]).toEqual([method.name, expected, message]);
        if (expected === Code.PermissionDenied)
          expect(message).toMatch(/may not call \w+\. Use an? \w+'s client certificate$/);
      }
    } finally {
      caller.destroy();
    }
  });

  test("who may not is answered the same with a request id and without, for what exists and what does not", async () => {
    const visitor = await as("visitor");
    try {
      const answers = new Set<string>();
      for (const requestId of ["", "7b0c9a3e-1f8d-4c55-9c3b-8e1d2a4f6071", "no id"]) {
        for (const name of ["", "some-name"]) {
          const message = encode(CreateSandboxRequestSchema, { ...scope, name, spec: {}, requestId });
          const { code, message: text } = await rawCall(
            visitor,
            pathOf(OpenShell.method.createSandbox),
            frame(message),
          );
          answers.add(`${code} ${text}`);
        }
      }
      expect([...answers]).toEqual([expect.stringMatching(new RegExp(`^${Code.PermissionDenied} `))]);
    } finally {
      visitor.destroy();
    }
  });

  test("a user's certificate calls users' methods, and no operator's", async () => {
    const user = dial({ cert: gateway.read("mtls/tls.crt"), key: gateway.read("mtls/tls.key") });
    try {
      expect((await rawCall(user, pathOf(OpenShell.method.getCurrentUser), frame(new Uint8Array()))).code).toBe(0);
      const refused = await rawCall(user, pathOf(OpenShell.method.getProviderCredentials), frame(new Uint8Array()));
      expectWellFormed(refused);
      expect(refused.code).toBe(Code.PermissionDenied);
    } finally {
      user.destroy();
    }
  });
});

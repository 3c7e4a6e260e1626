import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { anyUnpack } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, createClient, createRouterTransport } from "@connectrpc/connect";
import { setTrailerStatus } from "@connectrpc/connect/protocol-grpc";
import { describe, expect, it } from "vitest";
import { errorBoundary, toClientError } from "./error-boundary.ts";
import { readStatusEnvelope } from "./error-details.ts";
import {
  ApiError,
  alreadyExists,
  ERROR_DOMAIN,
  invalidArgument,
  mutationLockTimeout,
  notFound,
  readErrorDetails,
  requestIdError,
  throwIfInvalid,
  unavailable,
  versionConflict,
} from "./errors.ts";
import { BadRequestSchema, ErrorInfoSchema } from "./generated/google/rpc/error_details_pb.js";
import { StatusSchema } from "./generated/google/rpc/status_pb.js";
import { ExecSandboxEventSchema, OpenShell } from "./generated/openshell_pb.js";
import { MAX_VIOLATIONS, Violations } from "./violations.ts";

/** The envelope and the transport status of an error, as a gRPC client receives them. */
function onTheWire(error: ConnectError) {
  const trailer = setTrailerStatus(new Headers(), error);
  const status = fromBinary(StatusSchema, Buffer.from(trailer.get("grpc-status-details-bin")!, "base64"));
  return {
    code: Number(trailer.get("grpc-status")),
    message: decodeURIComponent(trailer.get("grpc-message")!),
    status,
  };
}

describe("ApiError", () => {
  const resource = { kind: "sandbox", name: "x" };

  it("writes transport status and details envelope with the same code and message, non-ASCII and newlines included", () => {
    const { code, message, status } = onTheWire(
      new ApiError(Code.InvalidArgument, "darf nicht „ä\nö“ sein", { resource }),
    );
    expect(message).toBe("darf nicht „ä\nö“ sein");
    expect([status.code, status.message]).toEqual([code, message]);
    expect(code).toBe(Code.InvalidArgument);
  });

  it("packs ErrorInfo with the public domain and BadRequest with every violation", () => {
    const { status } = onTheWire(
      invalidArgument([
        { field: "name", description: "must not be empty" },
        { field: "spec.command[0]", description: "must not be empty" },
      ]),
    );
    const info = anyUnpack(status.details[0]!, ErrorInfoSchema)!;
    expect([info.reason, info.domain]).toEqual(["INVALID_ARGUMENT", ERROR_DOMAIN]);
    const bad = anyUnpack(status.details[1]!, BadRequestSchema)!;
    expect(bad.fieldViolations.map((entry) => entry.field)).toEqual(["name", "spec.command[0]"]);
    expect(status.details.map((detail) => detail.typeUrl)).toEqual([
      "type.googleapis.com/google.rpc.ErrorInfo",
      "type.googleapis.com/google.rpc.BadRequest",
    ]);
  });

  it("names the first violation and the number of the others in the message", () => {
    const list = ["a", "b", "c"].map((field) => ({ field, description: "is wrong" }));
    expect(invalidArgument(list).rawMessage).toBe("a: is wrong (and 2 more)");
  });

  /** Bytes of status, message and envelope as HTTP/2 counts headers: name, value and 32 each. */
  function trailerBytes(error: ConnectError): number {
    return [...setTrailerStatus(new Headers(), error)].reduce(
      (sum, [key, value]) => sum + key.length + value.length + 32,
      0,
    );
  }

  it.each([
    ["ASCII", "x"],
    ["percent signs", "%"],
    ["umlauts", "ä"],
    ["kana", "あ"],
    ["pairs of surrogates", "😀"],
    ["controls", "\u0000"],
  ])("fits the 8 KiB that common clients accept, however many and long its parts are: %s", (_, character) => {
    const long = character.repeat(9_999);
    const violations = new Violations();
    for (let index = 0; index < 10_000; index++) violations.add({ field: `f${index}${long}`, description: long });
    expect(violations.list).toHaveLength(MAX_VIOLATIONS);
    const resource = { kind: "sandbox", name: long };
    const error = invalidArgument(violations.list, { next: long, resource, retryDelayMs: 1 });
    expect(trailerBytes(error)).toBeLessThan(8_000);
    const { status, message } = onTheWire(error);
    expect(status.message).toBe(message);
    const details = readErrorDetails(error);
    expect(details.violations.length).toBeGreaterThan(0);
    for (const { description } of details.violations) expect(description.length).toBeLessThanOrEqual(256);
    expect(details).toMatchObject({ reason: "INVALID_ARGUMENT", retryDelayMs: 1, resource: { kind: "sandbox" } });
  });

  it("shows nothing of a caller's that a terminal would obey", () => {
    const error = invalidArgument([{ field: "labels[\u001b[31m\u202e\n]", description: "must not\u0007" }], {
      resource: { kind: "sandbox", name: "\u001b]0;x" },
      next: "Beep\u0007",
    });
    expect(error.rawMessage).toBe("labels[\\x1b[31m\\u202e\\x0a]: must not\\x07. Beep\\x07");
    expect(readErrorDetails(error)).toMatchObject({
      violations: [{ field: "labels[\\x1b[31m\\u202e\\x0a]", description: "must not\\x07" }],
      resource: { name: "\\x1b]0;x" },
    });
  });

  it("says exactly `sandbox not found`, which clients compare, and carries the name apart", () => {
    const error = notFound("sandbox", "demo");
    expect([error.code, error.rawMessage]).toEqual([Code.NotFound, "sandbox not found"]);
    expect(readErrorDetails(error).resource).toEqual({ kind: "sandbox", name: "demo" });
  });

  it("describes a version conflict with recovery and the current version", () => {
    const details = readErrorDetails(versionConflict("provider", "openai", 18_446_744_073_709_551_615n));
    expect(details.reason).toBe("RESOURCE_VERSION_CONFLICT");
    expect(details.metadata).toEqual({ recovery: "REFRESH_STATE", current_resource_version: "18446744073709551615" });
    expect(readErrorDetails(versionConflict("provider", "openai")).metadata).toEqual({ recovery: "REFRESH_STATE" });
    expect(versionConflict("provider", "openai").code).toBe(Code.Aborted);
  });

  it("carries a retry delay of 1.25 s exactly", () => {
    expect(readErrorDetails(unavailable("busy", { retryDelayMs: 1250 })).retryDelayMs).toBe(1250);
    expect(readErrorDetails(mutationLockTimeout("sandbox", "a", 10_000))).toMatchObject({
      reason: "MUTATION_LOCK_TIMEOUT",
      retryDelayMs: 10_000,
    });
  });

  it("uses FAILED_PRECONDITION for every request id reason", () => {
    const names = [
      "REQUEST_ID_PAYLOAD_MISMATCH",
      "REQUEST_OUTCOME_UNCERTAIN",
      "REQUEST_REPLAY_UNAVAILABLE",
      "REQUEST_STREAM_UNAVAILABLE",
    ] as const;
    for (const name of names) {
      expect(requestIdError(name).code).toBe(Code.FailedPrecondition);
      expect(readErrorDetails(requestIdError(name)).reason).toBe(name);
    }
  });

  it("is told apart from a plain ConnectError, and is one", () => {
    expect(alreadyExists("sandbox", "a")).toBeInstanceOf(ConnectError);
    expect(new ConnectError("x", Code.NotFound) instanceof ApiError).toBe(false);
    expect(alreadyExists("sandbox", "a") instanceof ApiError).toBe(true);
  });

  it("collects violations and throws them together", () => {
    const violations = new Violations();
    violations.require(true, "fine", "never");
    violations.add(undefined);
    expect(() => throwIfInvalid(violations)).not.toThrow();
    violations.require(false, "name", "is taken");
    expect(() => throwIfInvalid(violations)).toThrow("name: is taken");
  });
});

describe("readStatusEnvelope", () => {
  const error = versionConflict("provider", "openai", 7n);
  const trailer = () => Buffer.from(setTrailerStatus(new Headers(), error).get("grpc-status-details-bin")!, "base64");

  it("reads the same details as Connect does", () => {
    expect(readStatusEnvelope(trailer(), error.code, error.rawMessage)).toEqual(readErrorDetails(error));
  });

  it("ignores an envelope of another code or message, and rubbish", () => {
    expect(readStatusEnvelope(trailer(), Code.NotFound, error.rawMessage)).toBeUndefined();
    expect(readStatusEnvelope(trailer(), error.code, "other")).toBeUndefined();
    expect(readStatusEnvelope(new Uint8Array([0xff, 0xff]), error.code, error.rawMessage)).toBeUndefined();
  });

  it("skips details that do not decode and keeps the rest", () => {
    const status = fromBinary(StatusSchema, trailer());
    status.details[0]!.value = new Uint8Array([0xff]);
    const details = readStatusEnvelope(toBinary(StatusSchema, status), error.code, error.rawMessage);
    expect(details).toMatchObject({ reason: undefined, resource: { kind: "provider", name: "openai" } });
  });
});

describe("errorBoundary", () => {
  const seen: [unknown, string][] = [];
  const secretFailure = new Error("password=hunter2 at /secret/path");
  const transport = createRouterTransport(
    ({ service }) =>
      service(OpenShell, {
        health: () => {
          throw secretFailure;
        },
        getSandbox: () => {
          throw notFound("sandbox", "x");
        },
        getProvider: () => {
          throw Object.assign(new Error("own"), { own: true });
        },
        async *execSandbox() {
          yield create(ExecSandboxEventSchema, { payload: { case: "exit", value: { exitCode: 0 } } });
          throw secretFailure;
        },
      }),
    {
      router: {
        interceptors: [
          errorBoundary({
            translate: (error) => ((error as { own?: boolean }).own ? unavailable("translated") : undefined),
            onInternal: (error, method) => seen.push([error, method]),
          }),
        ],
      },
    },
  );
  const client = createClient(OpenShell, transport);
  const failure = (call: Promise<unknown>) =>
    call.then(
      () => undefined,
      (error: ConnectError) => error,
    );

  it("hides the text of an unexpected error and reports the original once", async () => {
    seen.length = 0;
    const error = await failure(client.health({}));
    expect(error).toMatchObject({ code: Code.Internal });
    expect(error!.message).not.toContain("hunter2");
    expect(seen).toEqual([[secretFailure, "Health"]]);
  });

  it("calls a message of a stream that does not decode the caller's fault, and logs nothing", () => {
    seen.length = 0;
    const error = new ConnectError("parse binary: cant skip wire type 4", Code.Internal);
    const shown = toClientError(error, { onInternal: () => seen.push([error, ""]) }, "ExecSandboxInteractive");
    expect(shown).toMatchObject({ code: Code.InvalidArgument });
    expect(readErrorDetails(shown).reason).toBe("INVALID_ARGUMENT");
    expect(seen).toEqual([]);
  });

  it("hides it in the middle of a response stream too", async () => {
    seen.length = 0;
    const read = async () => {
      for await (const event of client.execSandbox({})) expect(event.payload.case).toBe("exit");
    };
    const error = await failure(read());
    expect(error).toMatchObject({ code: Code.Internal });
    expect(error!.message).not.toContain("hunter2");
    expect(seen).toEqual([[secretFailure, "ExecSandbox"]]);
  });

  it("passes ApiErrors on with their details, and translates the server's own errors", async () => {
    const error = (await failure(client.getSandbox({})))!;
    expect([error.code, error.rawMessage]).toEqual([Code.NotFound, "sandbox not found"]);
    expect(readErrorDetails(error).resource?.name).toBe("x");
    expect(await failure(client.getProvider({}))).toMatchObject({ code: Code.Unavailable, rawMessage: "translated" });
  });
});

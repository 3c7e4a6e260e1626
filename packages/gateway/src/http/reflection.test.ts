import { create, createFileRegistry, fromBinary, getOption } from "@bufbuild/protobuf";
import { FileDescriptorProtoSchema, FileDescriptorSetSchema } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, createClient, createRouterTransport } from "@connectrpc/connect";
import { OpenShell } from "@openshell/api";
import { unavailable } from "@openshell/api/errors.ts";
import {
  ServerReflection,
  type ServerReflectionRequest,
  type ServerReflectionResponse,
} from "@openshell/api/generated/grpc/reflection/v1/reflection_pb.js";
import { ServerReflection as ServerReflectionAlpha } from "@openshell/api/generated/grpc/reflection/v1alpha/reflection_pb.js";
import { authorization } from "@openshell/api/generated/options_pb.js";
import { type Clock, systemClock } from "@openshell/base";
import { BoundedQueue } from "@openshell/base/queue.ts";
import { describe, expect, it } from "vitest";
import { HttpLimits } from "./limits.ts";
import { reflection } from "./reflection.ts";
import { PUBLIC_SERVICES, publicSchema } from "./standard-services.ts";

type Question = NonNullable<ServerReflectionRequest["messageRequest"]>;
type Answer = ServerReflectionResponse["messageResponse"];

function server(clock: Clock = systemClock) {
  const stopping = new AbortController();
  const { v1, v1alpha } = reflection({ schema: publicSchema, clock, stopping: stopping.signal });
  const transport = createRouterTransport((router) => {
    router.service(ServerReflection, v1);
    router.service(ServerReflectionAlpha, v1alpha);
  });
  return {
    stopping,
    client: createClient(ServerReflection, transport),
    alpha: createClient(ServerReflectionAlpha, transport),
  };
}

/** All answers to questions of one stream. */
async function ask(...questions: readonly object[]): Promise<Answer[]> {
  const { client } = server();
  const answers: Answer[] = [];
  const requests = (async function* () {
    for (const messageRequest of questions) yield { messageRequest: messageRequest as Question };
  })();
  for await (const { messageResponse } of client.serverReflectionInfo(requests)) answers.push(messageResponse);
  return answers;
}

function fileNames(answer: Answer | undefined): readonly string[] {
  if (answer?.case !== "fileDescriptorResponse") throw new Error(`got ${answer?.case}`);
  return answer.value.fileDescriptorProto.map((bytes) => fromBinary(FileDescriptorProtoSchema, bytes).name);
}

async function firstOf<T>(answers: AsyncIterable<T>): Promise<T | undefined> {
  for await (const answer of answers) return answer;
  return undefined;
}

const named = (value: string) => ({ case: "fileByFilename", value });
const declaring = (value: string) => ({ case: "fileContainingSymbol", value });

describe("gRPC reflection", () => {
  it("lists the services of the users' listeners", async () => {
    const [answer] = await ask({ case: "listServices", value: "" });
    expect(answer).toMatchObject({
      case: "listServicesResponse",
      value: {
        service: [
          "openshell.v1.OpenShell",
          "grpc.health.v1.Health",
          "grpc.reflection.v1.ServerReflection",
          "grpc.reflection.v1alpha.ServerReflection",
        ].map((name) => ({ name })),
      },
    });
  });

  it("gives a file whole: with what it imports, from which a client can make every call", async () => {
    const [answer] = await ask(declaring("openshell.v1.OpenShell"));
    const names = fileNames(answer);
    expect(names[0]).toBe("openshell.proto");
    expect(new Set(names).size).toBe(names.length);
    const sent = (answer!.value as { fileDescriptorProto: Uint8Array[] }).fileDescriptorProto;
    const file = sent.map((bytes) => fromBinary(FileDescriptorProtoSchema, bytes)).toReversed();
    const registry = createFileRegistry(create(FileDescriptorSetSchema, { file }));
    const service = registry.getService("openshell.v1.OpenShell")!;
    expect(service.methods.map((method) => `${method.name} ${method.methodKind} ${method.input.typeName}`)).toEqual(
      OpenShell.methods.map((method) => `${method.name} ${method.methodKind} ${method.input.typeName}`),
    );
    // Options of ours travel with it.
    const method = service.methods.find(({ name }) => name === "CreateSandbox")!;
    expect(getOption(method, authorization).scope).toBe("sandbox:write");
  });

  it("finds the file of every kind of name", async () => {
    const names = {
      "openshell.v1.OpenShell.Health": "openshell.proto",
      "openshell.v1.HealthRequest": "openshell.proto",
      "openshell.v1.HealthResponse.version": "openshell.proto",
      "openshell.v1.ServiceStatus": "openshell.proto",
      "openshell.v1.SERVICE_STATUS_HEALTHY": "openshell.proto",
      "openshell.datamodel.v1.ObjectMeta.LabelsEntry": "datamodel.proto",
      "openshell.datamodel.v1.WorkspaceSelector.selection": "datamodel.proto",
      "openshell.options.v1.authorization": "options.proto",
      "google.protobuf.Timestamp": "google/protobuf/timestamp.proto",
      "google.rpc.BadRequest.FieldViolation": "google/rpc/error_details.proto",
      "google.rpc.Status": "google/rpc/status.proto",
      "grpc.health.v1.HealthCheckResponse.ServingStatus": "grpc/health/v1/health.proto",
      "grpc.health.v1.HealthCheckResponse.SERVING": "grpc/health/v1/health.proto",
      "grpc.reflection.v1.ServerReflection": "grpc/reflection/v1/reflection.proto",
      "grpc.reflection.v1alpha.ServerReflection.ServerReflectionInfo": "grpc/reflection/v1alpha/reflection.proto",
    };
    for (const [name, file] of Object.entries(names)) {
      const [answer] = await ask(declaring(name));
      expect([name, fileNames(answer)[0]]).toEqual([name, file]);
    }
  });

  it("sends an imported file once a stream, and what was asked for each time", async () => {
    const answers = await ask(named("sandbox.proto"), named("openshell.proto"), named("sandbox.proto"));
    const [first, second, third] = answers.map(fileNames);
    expect(first![0]).toBe("sandbox.proto");
    expect(second![0]).toBe("openshell.proto");
    expect(second!.filter((name) => first!.includes(name))).toEqual([]);
    expect(third).toEqual(["sandbox.proto"]);
  });

  it("knows the extensions of ours", async () => {
    const containingType = "google.protobuf.MethodOptions";
    const answers = await ask(
      { case: "allExtensionNumbersOfType", value: containingType },
      { case: "allExtensionNumbersOfType", value: "openshell.v1.HealthRequest" },
      { case: "fileContainingExtension", value: { containingType, extensionNumber: 50_000 } },
    );
    expect(answers.slice(0, 2).map((answer) => answer.value)).toMatchObject([
      { baseTypeName: containingType, extensionNumber: [50_000] },
      { baseTypeName: "openshell.v1.HealthRequest", extensionNumber: [] },
    ]);
    expect(fileNames(answers[2])[0]).toBe("options.proto");
  });

  it("answers what it does not know with an error and goes on", async () => {
    const containingType = "google.protobuf.MethodOptions";
    const long = "a".repeat(HttpLimits.reflectionNameCharacters + 1);
    const answers = await ask(
      named("nothing.proto"),
      declaring("openshell.v1.Nothing"),
      declaring(""),
      { case: "fileContainingExtension", value: { containingType, extensionNumber: 1 } },
      { case: "allExtensionNumbersOfType", value: "openshell.v1.ServiceStatus" },
      declaring(long),
      { case: undefined },
      named("options.proto"),
    );
    const codes = answers.slice(0, -1).map(({ value }) => (value as { errorCode: number }).errorCode);
    expect(codes).toEqual([...Array(5).fill(Code.NotFound), Code.InvalidArgument, Code.InvalidArgument]);
    expect(JSON.stringify(answers.slice(0, -1))).not.toContain(long);
    expect(fileNames(answers.at(-1))[0]).toBe("options.proto");
  });

  it("does not send back what is too long for a name", async () => {
    const { client } = server();
    const long = "a".repeat(HttpLimits.reflectionNameCharacters + 1);
    const requests = (async function* () {
      yield { host: long, messageRequest: named("options.proto") as Question };
      yield { messageRequest: declaring(long) as Question };
      yield { host: "h", messageRequest: named("options.proto") as Question };
    })();
    const seen: [string, boolean, string | undefined][] = [];
    for await (const { validHost, originalRequest, messageResponse } of client.serverReflectionInfo(requests)) {
      seen.push([validHost, originalRequest !== undefined, messageResponse.case]);
    }
    expect(seen).toEqual([
      ["", false, "errorResponse"],
      ["", false, "errorResponse"],
      ["h", true, "fileDescriptorResponse"],
    ]);
  });

  it("tells nothing of the hosts' protocol", async () => {
    const answers = await ask(
      named("openshell/supervisor/v1/supervisor.proto"),
      declaring("openshell.supervisor.v1.SupervisorGateway"),
      declaring("openshell.supervisor.v1.SupervisorGateway.ConnectHost"),
      declaring("openshell.supervisor.v1.HostUplink"),
    );
    expect(answers.map((answer) => answer.case)).toEqual(Array(4).fill("errorResponse"));
    expect([...publicSchema().files].toSorted()).toEqual([
      "datamodel.proto",
      "google/protobuf/any.proto",
      "google/protobuf/descriptor.proto",
      "google/protobuf/duration.proto",
      "google/protobuf/struct.proto",
      "google/protobuf/timestamp.proto",
      "google/rpc/error_details.proto",
      "google/rpc/status.proto",
      "grpc/health/v1/health.proto",
      "grpc/reflection/v1/reflection.proto",
      "grpc/reflection/v1alpha/reflection.proto",
      "openshell.proto",
      "options.proto",
      "sandbox.proto",
    ]);
    expect(PUBLIC_SERVICES.map(({ typeName }) => typeName)).not.toContain("openshell.supervisor.v1.SupervisorGateway");
  });

  it("answers the older version alike, with host and question repeated", async () => {
    const { client, alpha } = server();
    const messageRequest = { case: "fileByFilename", value: "options.proto" } as const;
    const question = async function* () {
      yield { host: "h", messageRequest };
    };
    const newer = await firstOf(client.serverReflectionInfo(question()));
    const older = await firstOf(alpha.serverReflectionInfo(question()));
    for (const answer of [newer, older]) {
      expect(answer).toMatchObject({ validHost: "h", originalRequest: { host: "h", messageRequest } });
    }
    expect(older!.messageResponse).toMatchObject({ case: "fileDescriptorResponse" });
    expect(older!.messageResponse.value).toMatchObject({
      fileDescriptorProto: (newer!.messageResponse.value as { fileDescriptorProto: Uint8Array[] }).fileDescriptorProto,
    });
  });

  it("ends a stream that asks too much", async () => {
    const { client } = server();
    const requests = (async function* () {
      for (;;) yield { messageRequest: declaring("x") as Question };
    })();
    let answers = 0;
    const reading = async (): Promise<void> => {
      for await (const _ of client.serverReflectionInfo(requests)) answers += 1;
    };
    await expect(reading()).rejects.toMatchObject({ code: Code.ResourceExhausted });
    expect(answers).toBe(HttpLimits.reflectionRequests);
  });

  it("ends an old stream in order, and refuses one too many", async () => {
    const wakes: (() => void)[] = [];
    const clock: Clock = {
      ...systemClock,
      sleep: (ms) => {
        expect(ms).toBe(HttpLimits.reflectionStreamMs);
        return new Promise((wake) => wakes.push(wake));
      },
    };
    const { client, alpha, stopping } = server(clock);
    const open = (one: typeof client | typeof alpha) => {
      const requests = new BoundedQueue<{ messageRequest: Question }>(10);
      requests.offer({ messageRequest: declaring("x") as Question });
      return (one as typeof client).serverReflectionInfo(requests)[Symbol.asyncIterator]();
    };
    const streams = Array.from({ length: HttpLimits.strangerReflectionStreams }, (_, at) =>
      open(at % 2 === 0 ? client : alpha),
    );
    for (const stream of streams) await stream.next();
    await expect(open(client).next()).rejects.toMatchObject({ code: Code.ResourceExhausted });
    wakes[0]!();
    expect(await streams[0]!.next()).toMatchObject({ done: true });
    expect(await open(client).next()).toMatchObject({ done: false });
    const ends = streams.slice(1).map((stream) => stream.next().catch((error) => ConnectError.from(error).code));
    stopping.abort(unavailable("the gateway is stopping"));
    expect(await Promise.all(ends)).toEqual(Array(ends.length).fill(Code.Unavailable));
  });
});

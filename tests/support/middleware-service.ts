import { create, fromBinary, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import grpc from "@grpc/grpc-js";
import {
  ManifestSchema,
  Operation,
  Phase,
  ValidateConfigRequestSchema,
  ValidateConfigResponseSchema,
} from "@openshell/api/generated/middleware_pb.js";

/** What the service shows of itself unless a test says otherwise. */
const MANIFEST: MessageInitShape<typeof ManifestSchema> = {
  name: "test-peer",
  serviceVersion: "1.0",
  bindings: [{ operation: Operation.HTTP_REQUEST, phase: Phase.PRE_CREDENTIALS, maxPayloadBytes: 1024n * 1024n }],
};

export interface MiddlewareOptions {
  /** 0: any that is free. */
  readonly port?: number;
  readonly tls?: { readonly cert: string; readonly key: string };
  readonly manifest?: MessageInitShape<typeof ManifestSchema>;
}

/** A middleware service on this machine, made with another gRPC implementation than ours (grpc-js). */
export class MiddlewareServer implements AsyncDisposable {
  readonly port: number;
  /** Calls of Describe: one for each connection. */
  describes = 0;
  /** Settings that it was asked about. */
  readonly asked: unknown[] = [];
  #server: grpc.Server;

  private constructor(server: grpc.Server, port: number) {
    this.#server = server;
    this.port = port;
  }

  static async start({ port = 0, tls, manifest = MANIFEST }: MiddlewareOptions = {}): Promise<MiddlewareServer> {
    const server = new grpc.Server();
    let made: MiddlewareServer | undefined;
    server.addService(
      { describe: method("Describe"), validateConfig: method("ValidateConfig") },
      {
        describe: (_call: unknown, answer: grpc.sendUnaryData<Buffer>) => {
          if (made !== undefined) made.describes += 1;
          answer(null, Buffer.from(toBinary(ManifestSchema, create(ManifestSchema, manifest))));
        },
        validateConfig: (call: grpc.ServerUnaryCall<Buffer, Buffer>, answer: grpc.sendUnaryData<Buffer>) => {
          const { config } = fromBinary(ValidateConfigRequestSchema, call.request);
          made?.asked.push(config);
          const accepted = config?.["refuse"] !== true;
          const message = create(ValidateConfigResponseSchema, { accepted });
          answer(null, Buffer.from(toBinary(ValidateConfigResponseSchema, message)));
        },
      },
    );
    const credentials =
      tls === undefined
        ? grpc.ServerCredentials.createInsecure()
        : grpc.ServerCredentials.createSsl(null, [
            { private_key: Buffer.from(tls.key), cert_chain: Buffer.from(tls.cert) },
          ]);
    const bound = await new Promise<number>((resolve, reject) => {
      server.bindAsync(`127.0.0.1:${port}`, credentials, (error, found) =>
        error === null ? resolve(found) : reject(error),
      );
    });
    made = new MiddlewareServer(server, bound);
    return made;
  }

  /** As a service that is killed: its connections break. */
  kill(): void {
    this.#server.forceShutdown();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.kill();
  }
}

function method(name: string): grpc.MethodDefinition<Buffer, Buffer> {
  const identity = (bytes: Buffer): Buffer => bytes;
  return {
    path: `/openshell.middleware.v1.SupervisorMiddleware/${name}`,
    requestStream: false,
    responseStream: false,
    requestSerialize: identity,
    requestDeserialize: identity,
    responseSerialize: identity,
    responseDeserialize: identity,
  };
}

import { PassThrough } from "node:stream";
import { expect, test } from "vitest";
import { FakeGateway } from "../testing/fake-gateway.ts";
import type { Endpoint } from "../transport/endpoint.ts";
import { openConnection } from "../transport/grpc-stream.ts";
import { attach } from "./attach.ts";

test("an interruption while the connection is being made ends the attachment", async () => {
  await using gateway = await FakeGateway.start();
  // It takes the call and says nothing.
  gateway.onStream = (stream) => void stream.on("error", () => {});
  const endpoint: Endpoint = { kind: "unix", path: gateway.socket };
  const stopped = new AbortController();
  const connection = openConnection(endpoint).then((made) => {
    stopped.abort();
    return made;
  });
  const start = { workspace: "", sandbox: "s", command: ["true"] };
  const streams = { stdin: new PassThrough(), stdout: new PassThrough(), stderr: new PassThrough() } as never;
  const options = { endpoint, connection, start, mainProcess: false, tty: false, detachable: false };
  await expect(attach({ ...options, signal: stopped.signal }, streams)).rejects.toMatchObject({ code: "unavailable" });
});

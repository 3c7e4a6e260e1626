import { createHmac, randomBytes, randomUUID } from "node:crypto";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import { Code, ConnectError, createContextValues } from "@connectrpc/connect";
import { OpenShell, StopSandboxRequestSchema } from "@openshell/api";
import { readErrorDetails } from "@openshell/api/errors.ts";
import { MAX_ADMISSIONS_PER_CALLER, MAX_RECEIPT_BYTES, REPLAY_WINDOW_MS } from "@openshell/api/request-id.ts";
import { type Clock, systemClock } from "@openshell/base";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { callerKey } from "../auth/caller.ts";
import { KeyedMutex } from "../compute/keyed-mutex.ts";
import { openStore } from "../store/store.ts";
import type { Store } from "../store/types.ts";
import { type Admission, type AdmissionDeps, admitted } from "./admission.ts";
import { write } from "./mutations.ts";

/** What a repetition of a request gets: the receipt and whether it was marked, or the reason of the refusal. */
type Outcome = { readonly receipt: string; readonly replayed: boolean } | { readonly refused: string };

describe("durable request ids", () => {
  let folder: string;
  let store: Store;
  let now = 1_000;
  const secret = randomBytes(32);
  const clock: Clock = { ...systemClock, now: () => now };

  beforeEach(async () => {
    now = 1_000;
    folder = await mkdtemp(join(tmpdir(), "openshell-admission-"));
    store = await openStore(join(folder, "gateway.db"));
  });
  afterEach(async () => {
    await store[Symbol.asyncDispose]();
    await rm(folder, { recursive: true, force: true });
  });

  const deps = (): AdmissionDeps => {
    const mac = (data: Uint8Array) => new Uint8Array(createHmac("sha256", secret).update(data).digest());
    return { store, clock, keys: { requestIds: mac, pageTokens: mac }, sameRequest: new KeyedMutex(clock, "request") };
  };
  const store_ = () => ({ store }) as Parameters<typeof write>[0];
  const finished = (receipt: string) => async (admission: Admission) => {
    await write(store_(), [...admission.admit, ...admission.succeed(receipt)]);
    return receipt;
  };

  async function send(
    requestId: string,
    run: (admission: Admission) => Promise<string>,
    subject = "me",
  ): Promise<Outcome> {
    const values = createContextValues().set(callerKey, {
      subject,
      displayName: subject,
      identityProvider: "mtls",
      roles: [],
      scopes: [],
      admin: true,
      ownerOfMachineFiles: false,
    });
    const responseHeader = new Headers();
    const context = { responseHeader, method: OpenShell.method.stopSandbox, values };
    const request = create(StopSandboxRequestSchema, { name: "x", requestId });
    const options = { schema: StopSandboxRequestSchema, request, workspace: "default" };
    try {
      const receipt = await admitted(deps(), context, options, (bytes) => Buffer.from(bytes).toString(), run);
      return { receipt, replayed: responseHeader.get("openshell-replayed") === "true" };
    } catch (error) {
      const { reason } = readErrorDetails(ConnectError.from(error));
      return { refused: reason ?? `${Code[ConnectError.from(error).code]}: ${(error as Error).message}` };
    }
  }
  const never = async (): Promise<string> => {
    throw new Error("was run again");
  };

  it("are replayed for 24 hours from the success, however often, and may be used again afterwards", async () => {
    const id = randomUUID();
    expect(await send(id, finished("first"))).toEqual({ receipt: "first", replayed: false });
    for (const after of [0, REPLAY_WINDOW_MS / 2, REPLAY_WINDOW_MS]) {
      now = 1_000 + after;
      expect(await send(id, never)).toEqual({ receipt: "first", replayed: true });
    }
    now = 1_001 + REPLAY_WINDOW_MS;
    expect(await send(id, finished("second"))).toEqual({ receipt: "second", replayed: false });
    expect(await send(id, never)).toEqual({ receipt: "second", replayed: true });
  });

  it("whose success was never stored are uncertain for ever: after a failure, a restart and any time", async () => {
    const id = randomUUID();
    const dies = async (admission: Admission): Promise<string> => {
      await write(store_(), admission.admit);
      throw new Error("killed");
    };
    expect(await send(id, dies)).toEqual({ refused: expect.stringMatching(/killed/) });
    expect(await send(id, never)).toEqual({ refused: "REQUEST_OUTCOME_UNCERTAIN" });
    await store[Symbol.asyncDispose]();
    store = await openStore(join(folder, "gateway.db"));
    now += 10 * REPLAY_WINDOW_MS;
    expect(await send(id, never)).toEqual({ refused: "REQUEST_OUTCOME_UNCERTAIN" });
  });

  it("of requests that were refused before anything was stored stay unused", async () => {
    const id = randomUUID();
    await send(id, async () => {
      throw new Error("refused");
    });
    expect(await send(id, finished("done"))).toEqual({ receipt: "done", replayed: false });
  });

  it("with a result too large to keep are uncertain, never done again", async () => {
    const id = randomUUID();
    const large = "x".repeat(MAX_RECEIPT_BYTES + 1);
    expect(await send(id, finished(large))).toEqual({ receipt: large, replayed: false });
    expect(await send(id, never)).toEqual({ refused: "REQUEST_OUTCOME_UNCERTAIN" });
    const most = "x".repeat(MAX_RECEIPT_BYTES);
    const other = randomUUID();
    await send(other, finished(most));
    expect(await send(other, never)).toEqual({ receipt: most, replayed: true });
  });

  it("are limited for each caller; expired ones make room", async () => {
    const ids = Array.from({ length: MAX_ADMISSIONS_PER_CALLER }, () => randomUUID());
    await Promise.all(ids.map((id) => send(id, finished("r"))));
    expect(await send(randomUUID(), finished("r"))).toEqual({
      refused: expect.stringMatching(/^ResourceExhausted: .*1000/),
    });
    expect(await send(randomUUID(), finished("r"), "somebody else")).toEqual({ receipt: "r", replayed: false });
    now += REPLAY_WINDOW_MS + 1;
    expect(await send(randomUUID(), finished("r"))).toEqual({ receipt: "r", replayed: false });
  });

  it("that arrive while the first is at work are answered like it", async () => {
    const id = randomUUID();
    const shared = deps();
    const gate = Promise.withResolvers<void>();
    const values = createContextValues().set(callerKey, { subject: "me", identityProvider: "mtls" } as never);
    const context = { responseHeader: new Headers(), method: OpenShell.method.stopSandbox, values };
    const request = create(StopSandboxRequestSchema, { name: "x", requestId: id });
    const options = { schema: StopSandboxRequestSchema, request, workspace: "default" };
    let runs = 0;
    const run = async (admission: Admission): Promise<string> => {
      runs += 1;
      await gate.promise;
      return await finished("done")(admission);
    };
    const all = [1, 2, 3].map(() => admitted(shared, context, options, (bytes) => Buffer.from(bytes).toString(), run));
    gate.resolve();
    expect(await Promise.all(all)).toEqual(["done", "done", "done"]);
    expect(runs).toBe(1);
  });
});

import { randomUUID } from "node:crypto";
import { Code, ConnectError, createClient, createRouterTransport, type Interceptor } from "@connectrpc/connect";
import { OpenShell } from "@openshell/api";
import { errorBoundary } from "@openshell/api/error-boundary.ts";
import { MAX_ADMISSIONS_PER_CALLER, REPLAY_WINDOW_MS } from "@openshell/api/request-id.ts";
import { systemClock } from "@openshell/base";
import { decodeEncoded } from "@openshell/rpc";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { callerKey } from "../../auth/caller.ts";
import { peerKey } from "../../auth/context.ts";
import { authInterceptor } from "../../auth/interceptor.ts";
import { translateError } from "../../http/translate-error.ts";
import { StoreError } from "../../store/errors.ts";
import { Harness } from "../testing/harness.ts";
import { call, hasSelector, inWorkspace, refusal, sampleOf } from "./calls.ts";
import { built, MUTATIONS, ready, requestFor, unary } from "./mutations.ts";

/** Request ids when something goes wrong, for every mutation that is built: a new one fails here until it is in the table. */

let gateway: Harness;
let ahead = 0;
beforeEach(async () => {
  ahead = 0;
  gateway = await Harness.open({ ...systemClock, now: () => systemClock.now() + ahead });
});
afterEach(() => gateway[Symbol.asyncDispose]());

const replayed = (headers: Headers) => headers.get("openshell-replayed");
/** Calls again until the answer is more than that the first one's is not known yet. */
async function settled(rpc: (typeof unary)[number], request: Record<string, unknown>) {
  let answer = await call(gateway, rpc, request);
  await gateway.until(async () => {
    answer = await call(gateway, rpc, request);
    return answer.error === undefined || !/success is not confirmed/.test(answer.error.rawMessage);
  }, `an outcome of ${rpc}`);
  return answer;
}

describe.each(unary)("a request id of %s", (rpc) => {
  const { prepare, request } = MUTATIONS[rpc]!;

  it.each(["before", "after"] as const)(
    "strands nothing when its caller goes away %s the change is stored: it is done, and repeated",
    async (moment) => {
      await prepare?.(gateway);
      const sent = requestFor(request, randomUUID());
      const leave = new AbortController();
      const gone = (): void => leave.abort();
      if (moment === "before") {
        gateway.beforeWrite = async () => gone();
        gateway.beforeModify = gone;
      } else gateway.afterWrite = gone;
      const client = gateway.client[rpc] as (input: unknown, options: object) => Promise<unknown>;
      await client(sent, { signal: leave.signal }).catch(() => {});
      if (!leave.signal.aborted) throw new Error(`${rpc} stored nothing`);
      gateway.beforeWrite = async () => {};
      gateway.beforeModify = () => {};
      gateway.afterWrite = () => {};
      const { error, headers } = await settled(rpc, sent);
      expect([error, replayed(headers)]).toEqual([undefined, "true"]);
    },
  );

  it("is done at most once when the word of its storage is lost: repeated, or uncertain for ever", async () => {
    await prepare?.(gateway);
    const sent = requestFor(request, randomUUID());
    let lost = false;
    gateway.afterWrite = () => {
      if (lost) return;
      lost = true;
      throw new StoreError("store_write_failed", "a test wanted it so");
    };
    await call(gateway, rpc, sent);
    expect(lost).toBe(true);
    gateway.afterWrite = () => {};
    const outcome = async () => {
      const { error, headers } = await call(gateway, rpc, sent);
      return error === undefined ? replayed(headers) : error.rawMessage;
    };
    const first = await outcome();
    expect(first).toMatch(/^true$|success is not confirmed/);
    expect(await outcome()).toBe(first);
    // What is uncertain stays so; a success that was stored expires like any other.
    ahead = 10 * REPLAY_WINDOW_MS;
    const later = await outcome();
    if (first === "true") expect(later).not.toBe("true");
    else expect(later).toBe(first);
  });

  it("is repeated for 24 h and is another request afterwards", async () => {
    await prepare?.(gateway);
    const sent = requestFor(request, randomUUID());
    expect((await call(gateway, rpc, sent)).error).toBeUndefined();
    ahead = REPLAY_WINDOW_MS - 10_000;
    expect(replayed((await call(gateway, rpc, sent)).headers)).toBe("true");
    ahead = REPLAY_WINDOW_MS + 10_000;
    const { error, headers } = await call(gateway, rpc, sent);
    expect(replayed(headers)).toBeNull();
    expect(error?.rawMessage ?? "").not.toMatch(/request_id/);
  });

  it("beyond the quota of its caller changes nothing, and is admitted when others expired", async () => {
    await prepare?.(gateway);
    const { admissions } = gateway.store;
    const { identityProvider, subject } = gateway.caller;
    const caller = JSON.stringify([identityProvider, subject]);
    const at = systemClock.now();
    const used = Array.from({ length: MAX_ADMISSIONS_PER_CALLER }, () => {
      const key = { caller, method: "StopSandbox", workspace: "default", requestId: randomUUID() };
      const admit = admissions.admit(key, "f", at, 0, MAX_ADMISSIONS_PER_CALLER);
      return [admit, admissions.succeed(key, Buffer.from("r"), at)];
    });
    await gateway.store.write(...used.flat());
    const sent = requestFor(request, randomUUID());
    const { code, message } = await refusal(gateway, rpc, sent);
    expect([code, message]).toEqual([Code.ResourceExhausted, expect.stringContaining(`${MAX_ADMISSIONS_PER_CALLER}`)]);
    ahead = REPLAY_WINDOW_MS + 10_000;
    const { error, headers } = await call(gateway, rpc, sent);
    expect([error, replayed(headers)]).toEqual([undefined, null]);
  });

  it("is authorized anew: whoever may not call any more gets no repetition", async () => {
    await prepare?.(gateway);
    let admin = true;
    const identify: Interceptor = (next) => (one) => {
      const caller = { ...gateway.caller, admin };
      one.contextValues.set(peerKey, { caller } as never).set(callerKey, caller);
      return next(one);
    };
    const boundary = errorBoundary({ translate: translateError, onInternal: () => {} });
    const interceptors = [decodeEncoded, boundary, identify, authInterceptor];
    const transport = createRouterTransport(gateway.services.userRoutes, { router: { interceptors } });
    const checked = { client: createClient(OpenShell, transport) };
    const sent = requestFor(request, randomUUID());
    expect((await call(checked, rpc, sent)).error).toBeUndefined();
    expect(replayed((await call(checked, rpc, sent)).headers)).toBe("true");
    admin = false;
    const { error, headers } = await call(checked, rpc, sent);
    expect([ConnectError.from(error).code, replayed(headers)]).toEqual([Code.PermissionDenied, null]);
  });
});

it.each(built.filter(hasSelector))(
  "a request id tells nobody of %s what there is (GATOR-defae1d4-01): the answer is the one without an id",
  async (rpc) => {
    const told = async (overrides: Record<string, unknown>) => {
      const { code, reason, message, fields } = await refusal(gateway, rpc, sampleOf(rpc, overrides));
      return { code, reason, message, fields };
    };
    const absent = inWorkspace("elsewhere");
    expect(await told({ ...absent, requestId: randomUUID() })).toEqual(await told(absent));
    // One that somebody else used says no more to others.
    await ready(gateway);
    const requestId = randomUUID();
    if (MUTATIONS[rpc] !== undefined) await call(gateway, rpc, requestFor(MUTATIONS[rpc].request, requestId));
    gateway.caller = { ...gateway.caller, subject: "somebody else" };
    expect(await told({ ...absent, requestId })).toEqual(await told(absent));
  },
);

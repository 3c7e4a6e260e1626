import { create } from "@bufbuild/protobuf";
import { SandboxPhase, SandboxStatusSchema } from "@openshell/api";
import type { Clock } from "@openshell/base";
import { expect, it } from "vitest";
import type { SandboxRecord } from "../store/types.ts";
import { START_WAIT_MS, startedSoon } from "./started-soon.ts";

const record = (phase: SandboxPhase): SandboxRecord =>
  ({ id: "s", status: create(SandboxStatusSchema, { phase }) }) as SandboxRecord;

/** Waits as long as it is told, at once. */
function stand(phaseAt: (ms: number) => SandboxPhase | undefined) {
  let ms = 0;
  const sleep = async (wait: number): Promise<void> => {
    ms += wait;
  };
  const clock = { monotonic: () => ms, sleep } as unknown as Clock;
  const byId = async () => {
    const phase = phaseAt(ms);
    return phase === undefined ? undefined : record(phase);
  };
  const deps = { clock, store: { sandboxes: { byId } } } as unknown as Parameters<typeof startedSoon>[0];
  return { deps, waited: () => ms };
}

const never = new AbortController().signal;
const { PROVISIONING, READY, ERROR } = SandboxPhase;

it.each([READY, ERROR])("answers with phase %i as soon as the start has it", async (phase) => {
  const { deps, waited } = stand((ms) => (ms < 50 ? PROVISIONING : phase));
  expect((await startedSoon(deps, record(PROVISIONING), never)).status.phase).toBe(phase);
  expect(waited()).toBe(50);
});

it("gives up after its limit, with the sandbox as it is", async () => {
  const { deps, waited } = stand(() => PROVISIONING);
  expect((await startedSoon(deps, record(PROVISIONING), never)).status.phase).toBe(PROVISIONING);
  expect(waited()).toBe(START_WAIT_MS);
});

it("does not wait for a sandbox that is gone, nor for a caller who left", async () => {
  const gone = stand(() => undefined);
  await startedSoon(gone.deps, record(PROVISIONING), never);
  expect(gone.waited()).toBe(10);
  const left = stand(() => PROVISIONING);
  await startedSoon(left.deps, record(PROVISIONING), AbortSignal.abort());
  expect(left.waited()).toBe(10);
});

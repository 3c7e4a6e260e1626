import type { Clock } from "@openshell/base";
import { describe, expect, it } from "vitest";
import { LimitWatch, readCounters } from "./limit-watch.ts";

/** Kernel files as texts; sleeps never end. */
function open(files: Record<string, string>) {
  const told: string[] = [];
  const clock: Clock = {
    now: () => 0,
    monotonic: () => 0,
    sleep: (_ms, { signal } = {}) =>
      new Promise((_, reject) => signal?.addEventListener("abort", () => reject(signal.reason))),
  };
  const read = (path: string): string => files[path] ?? "";
  const watch = new LimitWatch(
    clock,
    ({ sandboxId, generation }, limit, times) => told.push(`${sandboxId}/${generation} ${limit} ${times}`),
    read,
  );
  return { told, watch, files, read };
}

const box = { sandboxId: "a", generation: 1n, folders: ["/v2/a"] };

describe("the counters of cgroups", () => {
  it("are read in both versions, wherever the kernel counts", () => {
    const { read } = open({
      "/v2/a/memory.events": "low 0\nhigh 0\nmax 99\noom 2\noom_kill 1\noom_group_kill 7\n",
      "/v2/a/workload/pids.events": "max 5\n",
      "/v2/a/pids.events": "max 3\n",
      "/memory/a/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
      "/pids/a/pids.events": "max 12\n",
    });
    expect(readCounters(["/v2/a"], read)).toEqual({ processes: 5, memory: 1 });
    expect(readCounters(["/memory/a", "/pids/a"], read)).toEqual({ processes: 12, memory: 4 });
    expect(readCounters(["/nowhere"], read)).toEqual({ processes: 0, memory: 0 });
  });
});

describe("the watch of limits", () => {
  it("tells once what happened between two looks, and not what happened before", async () => {
    const { told, watch, files } = open({ "/v2/a/pids.events": "max 7\n" });
    watch.add(box);
    watch.check();
    expect(told).toEqual([]);
    files["/v2/a/pids.events"] = "max 9\n";
    files["/v2/a/memory.events"] = "oom_kill 1\n";
    watch.check();
    watch.check();
    expect(told).toEqual(["a/1 processes 2", "a/1 memory 1"]);
    await watch[Symbol.asyncDispose]();
  });
  it("looks a last time when a sandbox is let go of, then no more", async () => {
    const { told, watch, files } = open({});
    watch.add(box);
    // Seen again after the gateway looked at its sandboxes: nothing is forgotten.
    files["/v2/a/memory.events"] = "oom_kill 1\n";
    watch.add(box);
    watch.remove("a");
    files["/v2/a/memory.events"] = "oom_kill 2\n";
    watch.check();
    expect(told).toEqual(["a/1 memory 1"]);
    await watch[Symbol.asyncDispose]();
  });
  it("waits for nothing where no cgroup can be made", async () => {
    const { watch } = open({});
    watch.add({ ...box, folders: [] });
    watch.check();
    await watch[Symbol.asyncDispose]();
  });
});

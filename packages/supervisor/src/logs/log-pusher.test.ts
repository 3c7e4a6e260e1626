import type { LogBatch } from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { expect, it } from "vitest";
import { LogPusher } from "./log-pusher.ts";

const line = (message: string) => ({ timeMs: 1, level: "INFO", target: "t", message });

it("counts the lines that a lagging gateway did not take", () => {
  const pusher = new LogPusher();
  const taken: LogBatch[] = [];
  let lags = true;
  pusher.connect((batch) => !lags && taken.push(batch) > 0);
  pusher.add(line("a"));
  pusher.add(line("b"));
  pusher.flush();
  lags = false;
  pusher.add(line("c"));
  pusher.flush();
  expect(taken.map(({ lines, dropped }) => [lines.map(({ message }) => message), dropped])).toEqual([[["c"], 2n]]);
  pusher.close();
});

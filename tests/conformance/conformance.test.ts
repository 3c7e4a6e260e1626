import { describe, expect, test } from "vitest";
import { runSuite, whySkipped } from "./suite.ts";

/**
 * Connect's public conformance suite, against what serves the gateway's ports and against our client. Both the lane and
 * connect-node run behind the same interfaces, so either can take the other's place. Ids and kernel play no part, so
 * one mode is enough.
 */

/**
 * What runs, and the least number of cases: far more than a broken selection would leave, a little below what there are.
 * The other protocols of the port are connect-node's in either case.
 */
const RUNS = [
  { side: "server", implementation: "lane", claims: "port", least: 3_500 },
  { side: "server", implementation: "connect-node", claims: "grpc", least: 800 },
  { side: "client", implementation: "lane", claims: "grpc", least: 1_000 },
  { side: "client", implementation: "connect-node", claims: "grpc", least: 1_000 },
] as const;

const skipped = whySkipped();

describe.skipIf(skipped !== undefined)(
  `Connect's conformance suite${skipped === undefined ? "" : ` (${skipped})`}`,
  () => {
    test.for(RUNS)("$side: $implementation", { timeout: 180_000 }, async ({ side, implementation, claims, least }) => {
      const startedAt = performance.now();
      const outcome = await runSuite(side, implementation, claims);
      const seconds = ((performance.now() - startedAt) / 1000).toFixed(1);
      const { cases, passed, failedAsExpected, repeated, surprises } = outcome;
      const counts = `${cases} cases, ${passed} passed, ${failedAsExpected} failed as expected, ${seconds} s`;
      console.log(
        `conformance: ${side} ${implementation}: ${counts}${repeated === "" ? "" : `; repeated: ${repeated}`}`,
      );
      expect(surprises).toBe("");
      expect(passed + failedAsExpected).toBe(cases);
      expect(cases).toBeGreaterThan(least);
    });
  },
);

import { describe, expect, test } from "vitest";
import { mode } from "../support/modes.ts";
import { program } from "../support/programs.ts";
import { IMPLEMENTATIONS } from "./implementation.ts";
import { runSuite } from "./suite.ts";

/**
 * Connect's public conformance suite, against what serves the gateway's ports and against our client. Both the lane and
 * connect-node run behind the same interfaces, so either can take the other's place. Ids and kernel play no part, so
 * one mode is enough.
 */

/** Far more than a broken selection of cases would leave, a little below what the suite has. */
const LEAST_CASES = { server: 3_500, client: 1_000 };

const found = program("conformance");
const missing = "missing" in found ? ` (not here: ${found.missing})` : "";

describe.skipIf(missing !== "" || mode !== "root")(`Connect's conformance suite${missing}`, () => {
  for (const side of ["server", "client"] as const) {
    test.for(IMPLEMENTATIONS)(`${side}: %s`, { timeout: 180_000 }, async (implementation) => {
      const startedAt = performance.now();
      const outcome = await runSuite(side, implementation);
      const seconds = ((performance.now() - startedAt) / 1000).toFixed(1);
      const { cases, passed, failedAsExpected, surprises } = outcome;
      console.log(
        `conformance: ${side} ${implementation}: ${cases} cases, ${passed} passed, ${failedAsExpected} failed as expected, ${seconds} s`,
      );
      expect(surprises).toBe("");
      expect(passed + failedAsExpected).toBe(cases);
      expect(cases).toBeGreaterThan(LEAST_CASES[side]);
    });
  }
});

import { spawnSync } from "node:child_process";

/** What `node -e 0` takes on the machine that the limits of the tests are said for. Milliseconds. */
const REFERENCE_MS = 20;
const SAMPLES = 3;
/** A machine slower than this is asked as if it were no slower: a limit has to stay one. */
const MOST = 6;

/** How many times longer than on the reference machine Node's own start takes at this moment: between 1 and 6. Takes some 0.1 s. */
export function slowness(): number {
  let least = Number.POSITIVE_INFINITY;
  for (let sample = 0; sample < SAMPLES; sample++) {
    const started = performance.now();
    spawnSync(process.execPath, ["-e", "0"], { stdio: "ignore" });
    least = Math.min(least, performance.now() - started);
  }
  return Math.min(MOST, Math.max(1, least / REFERENCE_MS));
}

/**
 * `ms` as they are said for the reference machine, for this one as it is now: what else runs beside a test makes the test
 * slower, and a limit of the clock would judge the machine. Not for a limit that tells one waiting time of the product from
 * another, for those do not become longer.
 */
export function allowedMs(ms: number): number {
  return ms * slowness();
}

import { invalidField } from "./errors.ts";

/** Pairs of one label selector. */
export const MAX_SELECTOR_PAIRS = 64;

const NAME = /^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$/;
const PREFIX = /^[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*$/;
const MAX_KEY = 253;

/** What is wrong with a label key (the syntax of Kubernetes: optional DNS subdomain, slash, name of at most 63 characters). */
export function labelKeyProblem(key: string): string | undefined {
  if (key.length > MAX_KEY) return `must have at most ${MAX_KEY} characters`;
  const slash = key.indexOf("/");
  if (slash >= 0 && !PREFIX.test(key.slice(0, slash))) return "must have a DNS subdomain before the slash";
  if (!NAME.test(key.slice(slash + 1))) {
    return 'must have a name of 1-63 letters, digits, "-", "_" and ".", with a letter or digit at both ends';
  }
  return undefined;
}

/** What is wrong with a label value: empty, or at most 63 characters like the name of a key. */
export function labelValueProblem(value: string): string | undefined {
  if (value === "" || NAME.test(value)) return undefined;
  return 'must be empty or 1-63 letters, digits, "-", "_" and ".", with a letter or digit at both ends';
}

/**
 * Parses `k=v,k2=v2` (equality only; all pairs must match). Empty text selects everything.
 *
 * @throws ApiError INVALID_ARGUMENT for bad syntax, more than {@link MAX_SELECTOR_PAIRS} pairs, or a key wanted with two values.
 */
export function parseLabelSelector(text: string, field = "label_selector"): ReadonlyMap<string, string> {
  const wanted = new Map<string, string>();
  if (text.trim() === "") return wanted;
  const pairs = text.split(",");
  if (pairs.length > MAX_SELECTOR_PAIRS) throw invalidField(field, `must have at most ${MAX_SELECTOR_PAIRS} pairs`);
  for (const pair of pairs) {
    const equals = pair.indexOf("=");
    if (equals < 0) throw invalidField(field, "must be a comma-separated list of key=value pairs");
    const key = pair.slice(0, equals).trim();
    const value = pair.slice(equals + 1).trim();
    const problem = labelKeyProblem(key) ?? labelValueProblem(value);
    if (problem !== undefined) throw invalidField(field, `each key and value ${problem}`);
    if (wanted.has(key) && wanted.get(key) !== value)
      throw invalidField(field, "wants two values of one key, which nothing matches");
    wanted.set(key, value);
  }
  return wanted;
}

/** Whether `labels` has every wanted pair. */
export function matchesLabels(labels: Readonly<Record<string, string>>, wanted: ReadonlyMap<string, string>): boolean {
  for (const [key, value] of wanted) if (!Object.hasOwn(labels, key) || labels[key] !== value) return false;
  return true;
}

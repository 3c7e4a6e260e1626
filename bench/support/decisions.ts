import {
  type CompiledPolicy,
  type ConnectionQuery,
  EMPTY_ENDPOINT,
  EMPTY_RULE,
  type NetworkRule,
  type Policy,
  type RequestQuery,
} from "@openshell/policy";

/**
 * Questions for the policy engine. The same are asked of policies of every size in one run: the cost must not grow with
 * the number of endpoints.
 */

export const BUDGET_NS = 5000;
const ASKED = 200_000;

/** `endpoints` endpoints in rules of ten; every tenth is a wildcard; each judges requests by `rules` rules. */
export function policyOf(endpoints: number, rules: number): Policy {
  const requestRules = Array.from({ length: rules }, (_, n) => ({
    ...EMPTY_RULE,
    method: n % 3 === 0 ? "POST" : "GET",
    path: n % 4 === 0 ? `/v1/service${n}/*/items` : n % 4 === 1 ? `/v1/service${n}/**` : `/v1/service${n}/items`,
  }));
  const networkPolicies = new Map<string, NetworkRule>();
  for (let first = 0; first < endpoints; first += 10) {
    networkPolicies.set(`rule_${String(first).padStart(7, "0")}`, {
      name: "",
      binaries: ["/usr/bin/curl", "/usr/lib/node/*/bin/node", `/opt/tool${first}/bin/run`],
      endpoints: Array.from({ length: Math.min(10, endpoints - first) }, (_, at) => ({
        ...EMPTY_ENDPOINT,
        host: at === 9 ? `*.svc${first}.example.com` : `host${first + at}.example.com`,
        ports: [443],
        protocol: "rest" as const,
        enforcement: "enforce" as const,
        rules: requestRules,
      })),
    });
  }
  return { version: 1, networkPolicies, networkMiddlewares: new Map() };
}

/** Nothing is asked twice in a row, so a remembered decision is met only as often as in real traffic of `hosts` hosts. */
function connectionQueries(endpoints: number, hosts: number): ConnectionQuery[] {
  let state = 12345;
  const random = (bound: number): number => {
    state = (state * 1_103_515_245 + 12_345) & 0x7fffffff;
    return state % bound;
  };
  const pool = Array.from({ length: hosts }, (_, n) => {
    const index = random(endpoints);
    const exe = n % 3 === 0 ? "/usr/lib/node/26/bin/node" : n % 3 === 1 ? "/usr/bin/curl" : "/usr/bin/python3";
    const host =
      n % 7 === 0
        ? `unknown${index}.example.com`
        : n % 5 === 0
          ? `x.svc${index - (index % 10)}.example.com`
          : `host${index}.example.com`;
    return { host, port: 443, process: { exe, ancestors: ["/bin/bash", "/usr/bin/agent"] } };
  });
  return Array.from({ length: ASKED }, () => pool[random(pool.length)] as ConnectionQuery);
}

/** Nanoseconds a decision. */
export interface Figures {
  readonly p50: number;
  readonly p99: number;
  readonly mean: number;
}

/** Blocks of 20 for the percentiles: a single decision is shorter than the clock's own cost. */
function measure(count: number, ask: (index: number) => void): Figures {
  const block = 20;
  for (let index = 0; index < Math.min(count, 20_000); index += 1) ask(index);
  const samples: number[] = [];
  for (let index = 0; index + block <= count; index += block) {
    const started = process.hrtime.bigint();
    for (let at = index; at < index + block; at += 1) ask(at);
    samples.push(Number(process.hrtime.bigint() - started) / block);
  }
  samples.sort((a, b) => a - b);
  const at = (share: number): number => Math.round(samples[Math.floor((samples.length - 1) * share)] as number);
  return { p50: at(0.5), p99: at(0.99), mean: Math.round(samples.reduce((sum, ns) => sum + ns, 0) / samples.length) };
}

function requestQueries(rules: number): RequestQuery[] {
  return Array.from({ length: 1000 }, (_, n) => ({
    method: n % 3 === 0 ? "POST" : "GET",
    path: n % 2 === 0 ? `/v1/service${n % rules}/items` : `/v1/service${n % rules}/a/items`,
    query: [["page", String(n)]],
    encodedSlash: false,
  }));
}

/** Decisions about connections, each a question of `hosts` hosts. */
export function connections(compiled: CompiledPolicy, endpoints: number, hosts: number): Figures {
  const queries = connectionQueries(endpoints, hosts);
  return measure(queries.length, (index) => compiled.connect(queries[index] as ConnectionQuery));
}

/** Decisions about requests on one granted connection. */
export function requests(compiled: CompiledPolicy, rules: number): Figures {
  const connection = compiled.connect({
    host: "host0.example.com",
    port: 443,
    process: { exe: "/usr/bin/curl", ancestors: [] },
  });
  if (!connection.allowed) throw new Error(connection.reason);
  const asked = requestQueries(rules);
  return measure(ASKED, (index) => compiled.request(connection.grant, asked[index % asked.length] as RequestQuery));
}

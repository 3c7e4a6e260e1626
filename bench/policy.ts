/**
 * Cost of policy decisions: `node bench/policy.ts`. The budget is 5 µs p99 with 100,000 endpoints (docs/performance.md); the same
 * questions are asked of a small policy in the same run, since the cost must not grow with the number of rules.
 */
import {
  type CompiledPolicy,
  type ConnectionQuery,
  compilePolicy,
  EMPTY_ENDPOINT,
  EMPTY_RULE,
  type NetworkRule,
  type Policy,
  type RequestQuery,
} from "@openshell/policy";

const BUDGET_NS = 5000;
const ASKED = 200_000;

/** `endpoints` endpoints in rules of ten; every tenth is a wildcard; each judges requests by `rules` rules. */
function policyOf(endpoints: number, rules: number): Policy {
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

interface Figures {
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

function show(name: string, figures: Figures): void {
  const verdict = figures.p99 <= BUDGET_NS ? "ok" : `over ${BUDGET_NS}`;
  console.log(`${name.padEnd(58)} p50 ${figures.p50} ns  p99 ${figures.p99} ns  mean ${figures.mean} ns  ${verdict}`);
  if (figures.p99 > BUDGET_NS) process.exitCode = 1;
}

function connections(compiled: CompiledPolicy, queries: readonly ConnectionQuery[]): Figures {
  return measure(queries.length, (index) => compiled.connect(queries[index] as ConnectionQuery));
}

for (const [endpoints, rules] of [
  [10, 5],
  [1000, 100],
  [100_000, 5],
] as const) {
  const started = performance.now();
  const compiled = compilePolicy(policyOf(endpoints, rules));
  console.log(`compile ${endpoints} endpoints: ${(performance.now() - started).toFixed(0)} ms`);
  show(`connect, ${endpoints} endpoints, 200 hosts in use`, connections(compiled, connectionQueries(endpoints, 200)));
  // Far more hosts than are remembered: each question is answered from the index.
  show(
    `connect, ${endpoints} endpoints, 50,000 hosts in use`,
    connections(compiled, connectionQueries(endpoints, 50_000)),
  );
  const connection = compiled.connect({
    host: "host0.example.com",
    port: 443,
    process: { exe: "/usr/bin/curl", ancestors: [] },
  });
  if (!connection.allowed) throw new Error(connection.reason);
  const asked = requestQueries(rules);
  show(
    `request, ${endpoints} endpoints, ${rules} rules each`,
    measure(ASKED, (index) => compiled.request(connection.grant, asked[index % asked.length] as RequestQuery)),
  );
}

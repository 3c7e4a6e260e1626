import type { Group } from "../fault.ts";

const KUBERNETES = "the Kubernetes driver";
const REPLICAS = "several gateways that share a database";
const CONTROLLER = "packages/gateway/src/compute/controller.ts";

/** Kubernetes, and what of it a local sandbox could have as well. */
export const kubernetes: Group = {
  name: "Kubernetes",
  faults: [
    {
      ids: ["#3421", "#3424"],
      mustNot: "A stop removes the supervisor or its Secrets before the workload has ended.",
      notBuilt: KUBERNETES,
    },
    {
      ids: ["#2932"],
      mustNot: "A start waits behind a Suspended condition of the stop before it.",
      notBuilt: KUBERNETES,
    },
    { ids: ["#2858"], mustNot: "A stop is over before the Pod is gone.", notBuilt: KUBERNETES },
    { ids: ["#3153"], mustNot: "A stop is held up for good by a Pod that does not end.", notBuilt: KUBERNETES },
    {
      ids: ["GATOR-eca09e94-01", "#2965"],
      mustNot: "A recovery runs the workload a second time.",
      guards: [
        {
          test: {
            file: "packages/gateway/src/api/lifecycle.test.ts",
            title: "reports a sandbox whose processes vanished, and never starts them again by itself",
          },
          without: [
            {
              file: CONTROLLER,
              from: "if (running === undefined) return await this.#lost(record);",
              to: "running ??= await this.#launch(record, launch);\n      if (running === undefined) return;",
            },
          ],
        },
      ],
    },
    {
      ids: ["GATOR-2244e2bf-01", "#3144"],
      mustNot: "A namespace that denies egress by default cuts the supervisor off.",
      notBuilt: KUBERNETES,
    },
    {
      ids: ["GATOR-52de5e21-01", "GATOR-52de5e21-02", "GATOR-52de5e21-03"],
      mustNot: "Objects of the split Pods let more through, or live longer, than their generation may.",
      notBuilt: KUBERNETES,
    },
    {
      ids: ["#2460"],
      mustNot: "A supervisor that is refused for good registers again and again without end.",
      guards: [
        {
          test: {
            file: "packages/supervisor/src/session/session.test.ts",
            title: "stops for good when the gateway rejects the session",
          },
          without: [
            {
              file: "packages/supervisor/src/session/supervisor.ts",
              from: 'return { kind: "rejected", reason: outcome.reason };',
              to: "",
            },
          ],
          hangs: true,
        },
      ],
    },
  ],
};

/** The database, and more than one gateway on it. */
export const database: Group = {
  name: "Database and replicas",
  faults: [
    {
      ids: ["#2195", "seed-002 (lock)"],
      mustNot: "A caller is told that the database is locked.",
      guards: [
        {
          test: {
            file: "packages/gateway/src/store/hazards.test.ts",
            title: "never says that the database is locked, whatever else reads and writes it",
          },
          without: [
            {
              file: "packages/gateway/src/store/writer-core.ts",
              from: "new DatabaseSync(path, { timeout: busyTimeoutMs });",
              to: "new DatabaseSync(path, { timeout: 0 });",
            },
          ],
        },
      ],
    },
    {
      ids: ["#3528"],
      mustNot: "All replicas wait for one lock, and each looks each watched sandbox up at each tick.",
      notBuilt: REPLICAS,
    },
    { ids: ["#3449"], mustNot: "A call does not find the replica that has the session.", notBuilt: REPLICAS },
    {
      ids: ["#3346"],
      mustNot: "Each call between replicas dials and authenticates anew, and 32 at once are the end.",
      notBuilt: REPLICAS,
    },
    { ids: ["#1994"], mustNot: "A call fails since its session is at another replica.", notBuilt: REPLICAS },
    { ids: ["#2489", "#2153"], mustNot: "Replicas do not agree on whether a sandbox is ready.", notBuilt: REPLICAS },
  ],
};

/** Times: no defence decides them, so they are measured. */
export const performance: Group = {
  name: "Performance",
  faults: [
    {
      ids: ["#1447", "fullsend#271", "#118"],
      mustNot: "A cold start takes seconds.",
      otherwise: "a time: `npm run bench -- create`, against its budget in docs/performance.md",
    },
    {
      ids: ["#3229"],
      mustNot: "A benchmark hangs when one of its workers fails.",
      otherwise: "of a benchmark program that is no part of this product",
    },
  ],
};

/** Security. */
export const security: Group = {
  name: "Security",
  faults: [
    {
      ids: ["#1169"],
      mustNot: "A name that nobody allowed is asked for outside, with whatever the agent wrote into it.",
      guards: [
        {
          test: {
            file: "packages/supervisor/src/egress/endpoints.test.ts",
            title: "a name is resolved only after the policy allowed it, once for a connection",
          },
          without: [
            {
              file: "packages/supervisor/src/egress/target.ts",
              from: "const access = decideAccess(generation, this.host, this.port, owners);",
              to: "void generation.network.resolver.resolve(this.host).catch(() => {});\n    const access = decideAccess(generation, this.host, this.port, owners);",
            },
          ],
        },
      ],
    },
    {
      ids: ["#3070", "GATOR-8768b149-04"],
      mustNot: "Traffic passes a middleware that may be left out without a word.",
      guards: [
        {
          test: {
            file: "packages/supervisor/src/egress/endpoints.test.ts",
            title: "a middleware that may be left out is left out, and that is told once; one that may not refuses",
          },
          without: [
            {
              file: "packages/supervisor/src/egress/flow.ts",
              from: "this.#context.skipped.tell(generation.policy, target, this.owners);",
              to: "",
            },
          ],
        },
      ],
    },
  ],
};

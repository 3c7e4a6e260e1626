import type { Group } from "../fault.ts";

const TOKENS = "packages/gateway/src/sessions/tokens.ts";
const TOKENS_TEST = "packages/gateway/src/sessions/tokens.test.ts";
const HOSTS = "packages/gateway/src/sessions/hosts.ts";
const HOSTS_TEST = "packages/gateway/src/sessions/hosts.test.ts";
const CONTROLLER = "packages/gateway/src/compute/controller.ts";
const STATUS = "packages/gateway/src/compute/status.ts";
const LIFECYCLE_TEST = "packages/gateway/src/api/lifecycle.test.ts";
const UPDATES_TEST = "packages/supervisor/src/session/session-updates.test.ts";

/** Sessions, boundaries and tokens. */
export const sessions: Group = {
  name: "Sessions, boundaries, tokens",
  faults: [
    {
      ids: ["#3396"],
      mustNot: "A supervisor that came back leaves the workload frozen, or gives up soon after.",
      guards: [
        {
          test: {
            file: UPDATES_TEST,
            title: "reconnects after the gateway died, without preparing again, and lets the workload run on",
          },
          without: [
            {
              file: "packages/supervisor/src/session/session.ts",
              from: "await boundary.resume();",
              to: "void boundary;",
            },
          ],
        },
      ],
    },
    {
      ids: ["#3409", "#3411"],
      mustNot: "A session that outlives its first token is refused, since the token was not renewed under its epoch.",
      guards: [
        {
          test: {
            file: HOSTS_TEST,
            title: "a host that stays connected has a good token of the same epoch at all times (#3409, #3411)",
          },
          without: [{ file: HOSTS, from: "void this.#renewTokens(host.id, connection, ended.signal);", to: "" }],
        },
        {
          test: {
            file: HOSTS_TEST,
            title: "a host that stays connected has a good token of the same epoch at all times (#3409, #3411)",
          },
          without: [
            {
              file: TOKENS,
              from: "return this.#issue(sandboxId, claims.generation, current.epoch, claims.hostId, [newest]);",
              to: "return this.assign(sandboxId, claims.generation, claims.hostId);",
            },
          ],
        },
        {
          test: {
            file: UPDATES_TEST,
            title: "reconnects with the token that was renewed meanwhile (#3409, #3411)",
          },
          without: [
            {
              file: "packages/supervisor/src/session/supervisor.ts",
              from: "this.#token = { token: token.token, epoch: token.epoch };",
              to: "void token;",
            },
          ],
        },
      ],
    },
    {
      ids: ["GATOR-bd2c9d7d-01"],
      mustNot: "An answer that got lost while a token was renewed leaves its owner without a good one.",
      guards: [
        {
          test: {
            file: TOKENS_TEST,
            title: "are replaced without a gap: the one before works until it expires, the one before that no more",
          },
          without: [
            {
              file: TOKENS,
              from: "for (const hash of current.hashes.slice(0, -1)) this.#byHash.delete(hash);",
              to: "for (const hash of current.hashes) this.#byHash.delete(hash);",
            },
          ],
        },
      ],
    },
    {
      ids: ["#1603", "kaiden#2654"],
      mustNot: "A sandbox never comes back, since its token ended while the gateway was away.",
      guards: [
        {
          test: {
            file: HOSTS_TEST,
            title:
              "a host whose tokens ended while the gateway was away gets new ones when it comes back (#1603, kaiden#2654)",
          },
          without: [
            {
              file: HOSTS,
              from: "for (const assignment of assigned) this.#sendAttach(connection, assignment);",
              to: "for (const assignment of assigned)\n      if (this.#deps.tokens.assignment(assignment.sandboxId) === undefined) this.#sendAttach(connection, assignment);",
            },
          ],
        },
      ],
    },
    {
      ids: ["#1954"],
      mustNot: "A token is good beyond its end.",
      guards: [
        {
          test: { file: TOKENS_TEST, title: "speak for one sandbox, generation and epoch, until they expire" },
          without: [
            {
              file: TOKENS,
              from: "if (claims === undefined || claims.expiresMs <= this.#clock.monotonic()) return undefined;",
              to: "if (claims === undefined) return undefined;",
            },
          ],
        },
      ],
    },
    {
      ids: ["#3546"],
      mustNot: "After a restart of the gateway a record of an owner that is gone keeps a sandbox from its next one.",
      guards: [
        {
          test: {
            file: "packages/gateway/src/hosts/launcher.test.ts",
            title: "takes over live hosts after a restart, pokes them, and records the dead",
          },
          without: [
            {
              file: "packages/gateway/src/hosts/launcher.ts",
              from: "await this.#gone(held);\n      }\n    }",
              to: "}\n    }",
            },
          ],
        },
      ],
    },
    {
      ids: ["#3314"],
      mustNot: "A sandbox is called READY while nothing can reach it.",
      guards: [
        {
          test: { file: LIFECYCLE_TEST, title: "is not called READY while its supervisor is away (#3314)" },
          without: [
            {
              file: "packages/gateway/src/compute/session-events.ts",
              from: "if (sessions.get(sandboxId) !== undefined) return;",
              to: "if (sessions !== undefined) return;",
            },
          ],
        },
      ],
    },
    {
      ids: ["#3308"],
      mustNot: "A sandbox in ERROR of which nothing was lost can only be deleted.",
      guards: [
        {
          test: {
            file: "packages/gateway/src/compute/status.test.ts",
            title: "phase %i (%s) may be started: %s",
          },
          without: [
            { file: STATUS, from: '"ComputeResourceMissing",\n  "SandboxEnded",\n  "DiskLimit', to: '"DiskLimit' },
          ],
        },
      ],
    },
    {
      ids: ["#3440"],
      mustNot: "What a restart of the machine ended is in ERROR, and neither stop nor start is allowed.",
      guards: [
        {
          test: {
            file: LIFECYCLE_TEST,
            title: "shows sandboxes of before a restart of the machine as stopped, with their files",
          },
          without: [
            {
              file: CONTROLLER,
              from: 'if (bootId !== "" && bootId !== this.#deps.bootId) {',
              to: 'if (bootId === "") {',
            },
          ],
        },
      ],
    },
  ],
};

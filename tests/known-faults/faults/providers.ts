import type { Group } from "../fault.ts";

const GATEWAY = "packages/gateway/src";
const CONFIG_TEST = `${GATEWAY}/api/config.test.ts`;
const ATTACH = `${GATEWAY}/api/attach-provider.ts`;
const ATTACH_TEST = `${GATEWAY}/api/attach-provider.test.ts`;
const CONTROLLER_TEST = "packages/supervisor/src/config/controller.test.ts";
const BINDING = "packages/credentials/src/binding.ts";

/** Providers, and the rotation of their credentials. */
export const providers: Group = {
  name: "Providers and rotation",
  faults: [
    {
      ids: ["#1306", "#1264", "#2777"],
      mustNot: "A rotation takes the credential away from processes that run, or cuts their connections.",
      guards: [
        {
          test: {
            file: "packages/credentials/src/state.test.ts",
            title: "the next request uses the new value through the old placeholder, for any number of rotations",
          },
          without: [
            {
              file: BINDING,
              from: "this.epoch = hash64([value.provider, value.name, value.identity, ...boundary]);",
              to: "this.epoch = hash64([value.provider, value.name, value.identity, value.value.reveal(), ...boundary]);",
            },
          ],
        },
        {
          test: {
            file: "packages/supervisor/src/egress/sandbox-egress-generations.test.ts",
            title: "a rotation leaves the request in flight that carries the credential (#1306, #1264)",
          },
          without: [
            {
              file: "packages/supervisor/src/egress/http-session.ts",
              from: "return !next.credentials.allows(credential.identity, endpoint);",
              to: "return true;",
            },
          ],
        },
      ],
    },
    {
      ids: ["#2510"],
      mustNot:
        "The ninth rotation breaks a process that holds the first placeholder; or a placeholder falls forward to a credential of somebody else.",
      guards: [
        {
          test: {
            file: CONTROLLER_TEST,
            title: "keeps the placeholders of running processes over nine rotations of one credential (#2510)",
          },
          without: [
            {
              file: BINDING,
              from: "this.epoch = hash64([value.provider, value.name, value.identity, ...boundary]);",
              to: "this.epoch = hash64([value.value.reveal(), ...boundary]);",
            },
          ],
        },
        {
          test: {
            file: CONTROLLER_TEST,
            title: "lets no placeholder fall forward to a credential of another identity",
          },
          without: [
            {
              file: BINDING,
              from: "this.epoch = hash64([value.provider, value.name, value.identity, ...boundary]);",
              to: "this.epoch = hash64([value.provider, value.name, ...boundary]);",
            },
          ],
        },
      ],
    },
    {
      ids: ["#3336"],
      mustNot: "A value that was rotated from outside goes on being served as it was.",
      guards: [
        {
          test: {
            file: CONFIG_TEST,
            title: "delivers a new value under the same identity, and nothing to sandboxes without it",
          },
          without: [
            {
              file: `${GATEWAY}/api/providers.ts`,
              from: "deps.configurationChanged(attached.map((sandbox) => sandbox.id));",
              to: "",
            },
          ],
        },
        {
          test: {
            file: CONFIG_TEST,
            title: "delivers a new value under the same identity, and nothing to sandboxes without it",
          },
          without: [
            {
              file: `${GATEWAY}/providers/environment.ts`,
              from: ".map(({ key, version, expiresAt }) => [key, version.toString(), expiresAt",
              to: ".map(({ key, expiresAt }) => [key, expiresAt",
            },
          ],
        },
      ],
    },
    {
      ids: ["#2589"],
      mustNot: "Another supervisor, or another credential, needs a restart of the workload.",
      guards: [
        {
          test: {
            file: `${GATEWAY}/api/lifecycle.test.ts`,
            title: "re-attaches after the host died, without starting the workload again",
          },
          without: [
            {
              file: `${GATEWAY}/sessions/session.ts`,
              from: "...(this.#firstStart ? { mainProcess } : {}),",
              to: "mainProcess,",
            },
          ],
        },
        {
          test: {
            file: ATTACH_TEST,
            title: "change while it runs: attached is READY, detached is REVOKED, and each set has an epoch of its own",
          },
          without: [
            {
              file: ATTACH,
              from: "// Also when nothing changed: whoever repeats a change wants it in force.\n    deps.configurationChanged([named.id]);",
              to: "",
            },
          ],
        },
      ],
    },
    {
      ids: ["#2722", "#3501"],
      mustNot: "Attaching a provider fails since something else was stored at the same time.",
      guards: [
        {
          test: {
            file: ATTACH_TEST,
            title: "that is changed while it is being attached or changed again is changed and attached",
          },
          without: [
            {
              file: ATTACH,
              from: 'if (!isStoreError(error, "store_conflict") || attempt >= ATTACH_ATTEMPTS) throw error;',
              to: "throw error;",
            },
          ],
        },
      ],
    },
    {
      ids: ["#2991"],
      mustNot: "A change of a provider that leaves out the type is refused, or loses it.",
      guards: [
        {
          test: {
            file: `${GATEWAY}/api/update-provider.test.ts`,
            title: "leaves the type out or repeats it, and keeps it either way (#2991)",
          },
          without: [
            {
              file: `${GATEWAY}/api/update-provider.ts`,
              from: 'found.require(type === "" || type.toLowerCase() === record.type, "provider.type", "cannot be changed");',
              to: 'found.require(type.toLowerCase() === record.type, "provider.type", "cannot be changed");',
            },
          ],
        },
      ],
    },
  ],
};

import type { Group } from "../fault.ts";

const DELIVERY = "packages/gateway/src/delivery/delivery.ts";
const DELIVERY_TEST = "packages/gateway/src/delivery/delivery.test.ts";
const GATEWAY_SESSION = "packages/gateway/src/sessions/session.ts";
const PROTOCOL_TEST = "packages/gateway/src/sessions/protocol.test.ts";
const CONTROLLER = "packages/supervisor/src/config/controller.ts";
const CONTROLLER_TEST = "packages/supervisor/src/config/controller.test.ts";
const GENERATIONS_TEST = "packages/supervisor/src/egress/sandbox-egress-generations.test.ts";

/** What reviews found in streamed configuration before it was released. */
export const streamedConfiguration: Group = {
  name: "Streamed configuration, found in review",
  faults: [
    {
      ids: ["GATOR-c10f3724-01"],
      mustNot: "A reconnect repeats the start-up exchange of a sandbox that runs.",
      guards: [
        {
          test: {
            file: "packages/supervisor/src/session/session-updates.test.ts",
            title:
              "repeats no start-up exchange on a reconnect: a candidate ends the session, and the workload runs on (GATOR-c10f3724-01)",
          },
          without: [
            {
              file: "packages/supervisor/src/session/session.ts",
              from: "if (!firstStart || this.#accepted)",
              to: "if (this.#accepted)",
            },
          ],
        },
        {
          test: {
            file: PROTOCOL_TEST,
            title: "skips the preparation on a reconnect, and a change made meanwhile is in its bootstrap",
          },
          without: [
            {
              file: GATEWAY_SESSION,
              from: "if (this.#firstStart && !(await this.#prepare(hello, reader))) return;",
              to: "if (!(await this.#prepare(hello, reader))) return;",
            },
          ],
        },
      ],
    },
    {
      ids: ["GATOR-c10f3724-02"],
      mustNot: "Provider state is installed under a policy that it was not made for.",
      guards: [
        {
          test: {
            file: CONTROLLER_TEST,
            title: "do not come about with provider state of another policy (GATOR-c10f3724-02)",
          },
          without: [
            {
              file: "packages/supervisor/src/config/identity.ts",
              from: '(a.policyHash === b.policyHash || a.policyHash === "" || b.policyHash === "")',
              to: "true",
            },
          ],
        },
      ],
    },
    {
      ids: ["GATOR-c10f3724-03"],
      mustNot:
        "A revision counts as acknowledged although what came of it could not be stored, and is never sent again.",
      guards: [
        {
          test: { file: DELIVERY_TEST, title: "sends again what was acknowledged but could not be stored" },
          without: [
            {
              file: DELIVERY,
              from: 'state.inFlight = undefined;\n      this.#failed(error, "sandbox");\n      return;',
              to: 'this.#failed(error, "sandbox");',
            },
          ],
        },
        {
          test: {
            file: PROTOCOL_TEST,
            title: "counts nothing as acknowledged whose admission could not be stored: the next session begins anew",
          },
          without: [
            {
              file: GATEWAY_SESSION,
              from: "await backend.configurationApplied(this, bootstrap, results);",
              to: "await backend.configurationApplied(this, bootstrap, results).catch(() => {});",
            },
          ],
        },
      ],
    },
    {
      ids: ["GATOR-c10f3724-04"],
      mustNot: "Settings of a configuration that was not admitted take effect.",
      guards: [
        {
          test: {
            file: CONTROLLER_TEST,
            title: "activates no settings of a configuration that was not admitted (GATOR-c10f3724-04)",
          },
          without: [
            {
              file: CONTROLLER,
              from: "this.#rejected = { key, problem };",
              to: "this.#rejected = { key, problem };\n    this.#deps.onSettings({ ...config.settings });",
            },
          ],
        },
      ],
    },
  ],
};

/** The first look after a start. */
export const firstLook: Group = {
  name: "The first look after a start",
  faults: [
    {
      ids: ["seed-003", "#3819"],
      mustNot:
        "The first poll or reconcile of an unchanged sandbox reports a change, makes a generation and cuts what is open; or a real change at that moment is missed.",
      guards: [
        {
          test: {
            file: CONTROLLER_TEST,
            title: "reports what it installed, so that the first look after it finds nothing to do (seed-003)",
          },
          without: [
            {
              file: CONTROLLER,
              from: "events.setting(change);\n    this.#observe();",
              to: "events.setting(change);",
            },
          ],
        },
        {
          test: {
            file: CONTROLLER_TEST,
            title: "reports what it installed, so that the first look after it finds nothing to do (seed-003)",
          },
          without: [
            {
              file: CONTROLLER,
              from: "if (!samePolicy || !sameEnvironment || !sameMiddleware || this.#quarantined)\n",
              to: "",
            },
            { file: CONTROLLER, from: "if (this.#isInForce(config)) {", to: "if (false) {" },
          ],
        },
        {
          test: {
            file: CONTROLLER_TEST,
            title: "finds a real change at the first look, also without any provider (seed-003)",
          },
          without: [
            {
              file: CONTROLLER,
              from: "if (this.#isInForce(config)) {",
              to: "if (this.#isInForce(config) || config.policyVersion === this.#current.config.policyVersion) {",
            },
          ],
        },
        {
          test: {
            file: DELIVERY_TEST,
            title: "sends nothing, stores nothing and opens no credential when nothing changed",
          },
          without: [
            {
              file: DELIVERY,
              from: "this.#config = initial(bootstrap.config.configRevision, pair);",
              to: 'this.#config = initial("", pair);',
            },
          ],
        },
        {
          test: { file: DELIVERY_TEST, title: "applies a real change that comes with the first reconcile" },
          without: [
            {
              file: DELIVERY,
              from: "if (this.#closed || (known && !state.again)) return;",
              to: "if (this.#closed || (known && !state.again) || state.sequence === 0n) return;",
            },
          ],
        },
        {
          test: {
            file: "packages/gateway/src/polling/polling.test.ts",
            title: "that nothing changed for reports nothing, and its polls change nothing",
          },
          without: [
            {
              file: "packages/gateway/src/polling/reports.ts",
              from: 'before === "" && same("config") && same("environment") && stored?.state === State.ACCEPTED',
              to: "false",
            },
          ],
        },
        {
          test: { file: GENERATIONS_TEST, title: "an unchanged policy closes nothing and reports nothing" },
          without: [
            {
              file: "packages/supervisor/src/egress/flow.ts",
              from: "if (refusal !== undefined) {\n      this.#ended = true;",
              to: "if (refusal !== undefined || next.number > 0) {\n      this.#ended = true;",
            },
          ],
        },
      ],
    },
  ],
};

import type { Group } from "../fault.ts";

const GATEWAY = "packages/gateway/src";
const SCHEDULER = `${GATEWAY}/delivery/scheduler.ts`;
const SCHEDULER_TEST = `${GATEWAY}/delivery/scheduler.test.ts`;
const OPERATIONS = `${GATEWAY}/delivery/operations.ts`;
const OPERATIONS_TEST = `${GATEWAY}/delivery/operations.test.ts`;
const CONFIG_TEST = `${GATEWAY}/api/config.test.ts`;
const CONTROLLER = "packages/supervisor/src/config/controller.ts";
const CONTROLLER_TEST = "packages/supervisor/src/config/controller.test.ts";

/** Delivery of configuration, and starts. */
export const configuration: Group = {
  name: "Configuration and starts",
  faults: [
    {
      ids: ["seed-002 (starvation)"],
      mustNot: "Sandboxes that change without end keep the others from ever being delivered to.",
      guards: [
        {
          test: {
            file: SCHEDULER_TEST,
            title: "takes dirty sandboxes round robin: one that changes all the time waits its turn like the others",
          },
          without: [
            {
              file: SCHEDULER,
              from: "const [delivery, since] = first.value;",
              to: "const [delivery, since] = [...this.#rings[lane]].at(-1)!;",
            },
          ],
        },
        {
          test: { file: SCHEDULER_TEST, title: "lets changes of many go on while changes of one never end" },
          without: [
            {
              file: SCHEDULER,
              from: 'this.#last === "fanout" ? ["sandbox", "fanout"] : ["fanout", "sandbox"];',
              to: '["sandbox", "fanout"];',
            },
          ],
        },
      ],
    },
    {
      ids: ["seed-002 (memory)"],
      mustNot: "What a gateway holds of its sandboxes grows with every change that it delivers.",
      guards: [
        {
          test: {
            file: `${GATEWAY}/delivery/delivery.test.ts`,
            title: "keeps nothing of a snapshot that was answered (seed-002)",
          },
          without: [
            { file: `${GATEWAY}/delivery/delivery.ts`, from: "if (!open) this.#last = undefined;", to: "void open;" },
          ],
        },
        {
          test: {
            file: `${GATEWAY}/delivery/delivery.test.ts`,
            title:
              "has one update of a component in flight, and sends the newest after its answer, whatever came in between",
          },
          without: [
            {
              file: `${GATEWAY}/delivery/delivery.ts`,
              from: "this.#bootstrapped && !this.#closed && !this.#building && !this.waiting;",
              to: "this.#bootstrapped && !this.#closed && !this.#building;",
            },
          ],
        },
        {
          test: {
            file: `${GATEWAY}/store/read-cache.test.ts`,
            title: "drops what was not used for longest, and never holds more than its limit",
          },
          without: [
            {
              file: `${GATEWAY}/store/read-cache.ts`,
              from: "if (this.#weight <= this.#maxWeight) return;",
              to: "return;",
            },
          ],
        },
      ],
    },
    {
      ids: ["#2518", "#2557"],
      mustNot: "A newer revision of the same rules is never acknowledged, since nothing had to be reloaded for it.",
      guards: [
        {
          test: {
            file: CONTROLLER_TEST,
            title: "acknowledges a newer version of the same rules without reloading them (#2518, #2557)",
          },
          without: [
            {
              file: CONTROLLER,
              from: "this.#current?.config.configRevision === config.configRevision &&",
              to: "this.#current?.config.policyHash === config.policyHash &&",
            },
          ],
        },
        {
          test: {
            file: `${GATEWAY}/delivery/snapshot.test.ts`,
            title:
              "is delivered anew for a newer version of an equal policy, so that the newer one is acknowledged too",
          },
          without: [
            {
              file: `${GATEWAY}/delivery/snapshot.ts`,
              from: "configRevision({ ...facts, settingsRevision: String(settingsRevision) })",
              to: "configRevision({ ...facts, policyVersion: 0, settingsRevision: String(settingsRevision) })",
            },
          ],
        },
      ],
    },
    {
      ids: ["#2165", "#1528"],
      mustNot: "A policy that is applied once more is refused for what the start itself added to it.",
      guards: [
        {
          test: {
            file: `${GATEWAY}/sessions/protocol.test.ts`,
            title:
              "takes the policy that its owner gave once more, although the start added paths to it (#2165, #1528)",
          },
          without: [
            {
              file: `${GATEWAY}/compute/configuration-events.ts`,
              from: "patch: current.spec.policy === undefined ? { spec: { ...current.spec, policy: baseline } } : {},",
              to: "patch: { spec: { ...current.spec, policy } },",
            },
          ],
        },
      ],
    },
    {
      ids: ["NemoClaw#6329"],
      mustNot: "Applying the same policy once more changes something in a sandbox that is at work.",
      guards: [
        {
          test: { file: CONFIG_TEST, title: "stays as it is when the same policy is sent again" },
          without: [
            {
              file: `${GATEWAY}/api/config.ts`,
              from: "if (latest?.hash === hash && sameAnnotations(latest.provenance, annotations)) {",
              to: "if (latest?.hash === hash && annotations === latest.provenance) {",
            },
          ],
        },
        {
          test: {
            file: "packages/supervisor/src/egress/sandbox-egress-generations.test.ts",
            title:
              "a download in flight survives an unrelated change and is cut by one that refuses it, with one event",
          },
          without: [
            {
              file: "packages/supervisor/src/egress/http-session.ts",
              from: "if (denied === undefined && !revoked) return false;",
              to: "",
            },
          ],
        },
      ],
    },
    {
      ids: ["NemoClaw#11863"],
      mustNot: "Setting a policy and waiting for it lasts a minute although the sandbox has it.",
      guards: [
        {
          test: {
            file: OPERATIONS_TEST,
            title: "release whoever waits, after the outcome is stored and not before",
          },
          without: [
            {
              file: OPERATIONS,
              from: "for (const resolve of this.#waiters.get(operationId) ?? []) resolve(result);",
              to: "void result;\n      void operationId;",
            },
          ],
        },
        {
          test: {
            file: CONFIG_TEST,
            title:
              "changes live: the answer comes after the supervisor's acknowledgement, both versions stay in the history",
          },
          without: [
            {
              file: `${GATEWAY}/api/config.ts`,
              from: "deps.log.info({ [LogField.sandboxId]: record.id, [LogField.subject]: subject, ...fields }, what);\n        deps.configurationChanged([record.id]);",
              to: "",
            },
          ],
        },
      ],
    },
    {
      ids: ["#3145", "GATOR-bde03eff-01"],
      mustNot: "A start whose configuration cannot be used, and that nobody repairs, waits for ever.",
      guards: [
        {
          test: {
            file: `${GATEWAY}/sessions/repair.test.ts`,
            title: "has failed at 5:00, and starts when it is started again with a policy",
          },
          without: [
            {
              file: `${GATEWAY}/sessions/session.ts`,
              from: "await Promise.race([late, change.promise, this.#reading]);",
              to: 'await Promise.race([change.promise, this.#reading]) as "late";',
            },
          ],
          hangs: true,
        },
        {
          test: {
            file: `${GATEWAY}/sessions/protocol.test.ts`,
            title: "ends a start whose policy cannot be prepared, and says why",
          },
          without: [
            {
              file: `${GATEWAY}/sessions/session.ts`,
              from: 'return new SessionRefused("configuration_rejected", text, { retryable: reason.retryable });',
              to: 'return new SessionRefused("configuration_rejected", text, { retryable: true });',
            },
          ],
        },
      ],
    },
    {
      ids: ["#3259", "GATOR-bde03eff-02"],
      mustNot: "A sandbox takes another policy for what its start fixed.",
      guards: [
        {
          test: { file: CONFIG_TEST, title: "refuses to change what the start fixed" },
          without: [
            {
              file: `${GATEWAY}/api/config.ts`,
              from: "checkStatic(current, policy);\n    if (latest",
              to: "void checkStatic;\n    if (latest",
            },
          ],
        },
      ],
    },
    {
      ids: ["GATOR-defae1d4-01", "#3272"],
      mustNot: "What a request id is answered tells whether a workspace exists, or what somebody else did.",
      guards: [
        {
          test: {
            file: `${GATEWAY}/api/form/request-id-faults.test.ts`,
            title:
              "a request id tells nobody of %s what there is (GATOR-defae1d4-01): the answer is the one without an id",
          },
          without: [
            {
              file: `${GATEWAY}/api/admission.ts`,
              from: "caller: JSON.stringify([caller.identityProvider, caller.subject]),",
              to: 'caller: caller.subject === "" ? "" : "one",',
            },
            {
              file: `${GATEWAY}/api/admission.ts`,
              from: "workspace: options.workspace,\n    requestId,",
              to: 'workspace: "",\n    requestId,',
            },
          ],
        },
      ],
    },
  ],
};

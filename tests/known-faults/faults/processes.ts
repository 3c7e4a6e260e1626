import type { Group } from "../fault.ts";

const SPAWN = "native/init/spawn.c";
const SPAWN_TEST = "tests/functional/boundary/spawn.test.ts";
const CAPTURE = "packages/supervisor/src/egress/capture.ts";
const CONTROLLER = "packages/gateway/src/compute/controller.ts";
const LIFECYCLE_TEST = "packages/gateway/src/api/lifecycle.test.ts";

/** Commands and processes. */
export const processes: Group = {
  name: "Commands and processes",
  faults: [
    {
      ids: ["#3142"],
      mustNot: "A command is said to have ended otherwise than it did, since another part took its status first.",
      guards: [
        {
          test: {
            file: SPAWN_TEST,
            title: "is told although the process ended before init knew that it was there (#3142)",
            suite: "system",
          },
          without: [
            {
              file: SPAWN,
              from: "if (at < 0 && !is_helper(pid) && spawn_waits()) {",
              to: "if (false) {",
            },
          ],
        },
      ],
    },
    {
      ids: ["GATOR-07441545-03", "#3757"],
      mustNot: "Orphans of the agent stay as zombies, since nobody in the sandbox takes their status.",
      guards: [
        {
          test: { file: SPAWN_TEST, title: "leaves no zombie and no descriptor behind", suite: "system" },
          without: [
            {
              file: SPAWN,
              from: "if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0) return false;",
              to: "for (int i = 0; i < agent_count && info.si_pid == 0; i++) waitid(P_PID, (id_t)agents[i].pid, &info, WEXITED | WNOHANG | WNOWAIT);\n    if (info.si_pid == 0) return false;",
            },
          ],
        },
      ],
    },
    {
      ids: ["#1990"],
      mustNot: "A command hangs whose session or host is gone.",
      guards: [
        {
          test: { file: LIFECYCLE_TEST, title: "says UNAVAILABLE, not a code, when the host dies under a command" },
          without: [
            {
              file: "packages/gateway/src/relay/exec.ts",
              from: "this.#source.next().then(resolve, (error: unknown) => reject(hostGone(error)));",
              to: "this.#source.next().then(resolve, () => resolve({ done: true, value: undefined }));",
            },
            {
              file: "packages/gateway/src/relay/exec.ts",
              from: "if (next.done) throw hostGone(undefined);",
              to: "if (next.done) return;",
            },
          ],
        },
        {
          test: {
            file: "packages/gateway/src/relay/relay.test.ts",
            title: "are given up as not opened when the session ends first, or cannot be told",
          },
          without: [
            {
              file: "packages/gateway/src/relay/broker.ts",
              from: "const stop = opener.onEnd(() => reject(new RelayUnopened()));",
              to: "const stop = opener.onEnd(() => {});",
            },
          ],
          hangs: true,
        },
      ],
    },
    {
      ids: ["#867"],
      mustNot: "A client waits for ever on a connection whose other side has vanished.",
      guards: [
        {
          test: {
            file: "packages/rpc/src/client/connection.test.ts",
            title: "gives up a server that no longer answers pings",
          },
          without: [
            {
              file: "packages/rpc/src/client/connection.ts",
              from: "if (keepalive !== undefined) keepAlive(session, keepalive);",
              to: "",
            },
          ],
          hangs: true,
        },
      ],
    },
    {
      ids: ["#3403", "#2369", "#2370", "#2337"],
      mustNot: "Accepting ends for good, or turns without a pause, once there was no descriptor for a moment.",
      guards: [
        {
          test: {
            file: "tests/functional/egress/accept.test.ts",
            title: "accepting that cannot go on for want of descriptors is tried again",
            suite: "system",
          },
          without: [
            {
              file: CAPTURE,
              from: "if (!this.#closed && !this.#paused) this.#resume(Math.min(retryMs * 2, RESUME_RETRY_MAX_MS));",
              to: "",
            },
          ],
        },
      ],
    },
    {
      ids: ["GATOR-07441545-02"],
      mustNot: "A stop or deletion takes a supervisor's authority before its outcome is known, and leaves it at that.",
      guards: [
        {
          test: {
            file: LIFECYCLE_TEST,
            title: "lets the supervisor speak for its sandbox until a stop has succeeded (GATOR-07441545-02)",
          },
          without: [
            {
              file: CONTROLLER,
              from: "// The main process keeps its grace: the next gateway goes on.\n    if (this.#closed.signal.aborted) return;",
              to: 'hosts.unassign(record.id, "stopped");',
            },
          ],
        },
        {
          test: {
            file: LIFECYCLE_TEST,
            title: "answers ACCEPTED when a deletion does not succeed at once, and finishes it by itself",
          },
          without: [{ file: CONTROLLER, from: "(id, error) => this.#retry(id, error),", to: "() => {}," }],
        },
      ],
    },
    {
      ids: ["fullsend#6691"],
      mustNot: "A sandbox whose main command ends at once is lost: its files are gone, or it cannot be started again.",
      guards: [
        {
          test: {
            file: LIFECYCLE_TEST,
            title: "records exit code %i of the main process and gives compute back",
          },
          without: [
            {
              file: "packages/gateway/src/compute/status.ts",
              from: "if (status.phase === SandboxPhase.STOPPED || status.phase === SandboxPhase.COMPLETED) return true;",
              to: "if (status.phase === SandboxPhase.STOPPED) return true;",
            },
          ],
        },
      ],
    },
  ],
};

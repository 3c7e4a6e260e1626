import { setTimeout as sleep } from "node:timers/promises";
import { type Client, Code, type ConnectError } from "@connectrpc/connect";
import { type OpenShell, SandboxPhase } from "@openshell/api";

/** What these tests do with sandboxes, over the public API. */

export type OpenShellClient = Client<typeof OpenShell>;

export const workspaceScope = { selection: { case: "workspace", value: "default" } } as const;
const READY_LIMIT_MS = 20_000;
/** Prints pid and start time of the main process, which is called sleep. */
export const MAIN_PROCESS =
  "for p in /proc/[0-9]*/stat; do read -r pid name rest < $p; [ $name = '(sleep)' ] && echo $pid $(echo $rest | cut -d' ' -f20); done; true";

/** Creates a sandbox that idles, and waits until it is ready. Resolves with its id. */
export async function createReady(client: OpenShellClient, name: string): Promise<string> {
  await client.createSandbox({ workspaceScope, name, spec: { command: ["sleep", "1000"] } });
  return await untilPhase(client, name, SandboxPhase.READY);
}

/** Waits for a phase; throws at ERROR. Resolves with the sandbox's id. */
export async function untilPhase(client: OpenShellClient, name: string, phase: SandboxPhase): Promise<string> {
  const deadline = performance.now() + READY_LIMIT_MS;
  for (;;) {
    const { sandbox } = await client.getSandbox({ workspaceScope, name });
    if (sandbox?.status?.phase === phase) return sandbox.metadata!.id;
    if (sandbox?.status?.phase === SandboxPhase.ERROR || performance.now() > deadline) {
      const { phase: found, conditions } = sandbox!.status!;
      throw new Error(`${name} is ${SandboxPhase[found]}, not ${SandboxPhase[phase]}: ${JSON.stringify(conditions)}`);
    }
    await sleep(5);
  }
}

/** Waits until there is no such sandbox. */
export async function untilGone(client: OpenShellClient, name: string): Promise<void> {
  const deadline = performance.now() + READY_LIMIT_MS;
  while (await exists(client, name)) {
    if (performance.now() > deadline) throw new Error(`${name} is still there`);
    await sleep(5);
  }
}

export async function exists(client: OpenShellClient, name: string): Promise<boolean> {
  try {
    await client.getSandbox({ workspaceScope, name });
    return true;
  } catch (error) {
    if ((error as ConnectError).code === Code.NotFound) return false;
    throw error;
  }
}

/** Output of a command, then `exit CODE`. */
export async function run(client: OpenShellClient, sandbox: string, ...command: string[]): Promise<string> {
  let output = "";
  for await (const { payload } of client.execSandbox({ workspaceScope, sandbox, command, noLoginShell: true })) {
    if (payload.case === "stdout") output += Buffer.from(payload.value.data);
    if (payload.case === "exit") output += `exit ${payload.value.exitCode}`;
  }
  return output;
}

/** Repeats a command while the gateway says that the sandbox is out of reach for the moment. */
export async function persistently<T>(attempt: () => Promise<T>): Promise<T> {
  const deadline = performance.now() + READY_LIMIT_MS;
  for (;;) {
    try {
      return await attempt();
    } catch (error) {
      const passing = [Code.Unavailable, Code.FailedPrecondition].includes((error as ConnectError).code);
      if (!passing || performance.now() > deadline) throw error;
      await sleep(20);
    }
  }
}

import type { GatewayRecord } from "@openshell/base/gateway-record.ts";
import { type AnyRequest, type AnyResponse, answer, answerJson, type PlainRoute, pathOf } from "../http/dispatcher.ts";

/** What to do with running sandboxes when the gateway stops. */
export type SandboxesAtStop = "refuse" | "keep" | "stop";

export interface LocalControl {
  readonly record: () => GatewayRecord | undefined;
  readonly runningSandboxes: () => Promise<number>;
  readonly hosts: () => number;
  /** Stops all of them; how many did not stop in time. */
  readonly stopSandboxes: () => Promise<number>;
  /** Begins to stop; returns at once. */
  readonly stop: (sandboxes: Exclude<SandboxesAtStop, "refuse">) => void;
}

/**
 * `/local/…`: what the command line asks of the gateway process itself. Answered to the gateway's own uid on the user
 * socket and to nobody else.
 */
export function localControlRoute(control: LocalControl): PlainRoute {
  return (request, response, peer) => {
    const path = pathOf(request);
    if (!path.startsWith("/local/")) return false;
    if (peer.caller?.ownerOfMachineFiles !== true) answer(response, 403, "only on the user socket, by its owner\n");
    else if (path === "/local/status" && request.method === "GET") void status(control, response);
    else if (path === "/local/stop" && request.method === "POST") void stop(control, request, response);
    else answer(response, 404, "not found\n");
    return true;
  };
}

async function status(control: LocalControl, response: AnyResponse): Promise<void> {
  try {
    const sandboxes = await control.runningSandboxes();
    answerJson(response, 200, { record: control.record(), sandboxes, hosts: control.hosts() });
  } catch {
    answer(response, 500, "the gateway cannot read its store; see its log\n");
  }
}

async function stop(control: LocalControl, request: AnyRequest, response: AnyResponse): Promise<void> {
  const wanted = new URL(request.url ?? "", "http://local").searchParams.get("sandboxes") ?? "refuse";
  if (wanted !== "refuse" && wanted !== "keep" && wanted !== "stop") {
    answerJson(response, 400, {
      code: "invalid_argument",
      message: "sandboxes must be refuse, keep or stop",
      next: "Choose one of them",
    });
    return;
  }
  try {
    const sandboxes = wanted === "refuse" ? await control.runningSandboxes() : 0;
    if (sandboxes > 0) {
      const what = sandboxes === 1 ? "1 sandbox is running" : `${sandboxes} sandboxes are running`;
      answerJson(response, 409, {
        code: "sandboxes_running",
        sandboxes,
        message: what,
        next: "Say --sandboxes keep to leave them running, or --sandboxes stop to end them",
      });
      return;
    }
    // Before anything ends: a gateway that cannot stop its sandboxes goes on watching them, and says so.
    const left = wanted === "stop" ? await control.stopSandboxes() : 0;
    if (left > 0) {
      answerJson(response, 409, {
        code: "sandboxes_running",
        sandboxes: left,
        message: left === 1 ? "1 sandbox did not stop" : `${left} sandboxes did not stop`,
        next: "See the gateway's log for the reason; --sandboxes keep stops the gateway without them",
      });
      return;
    }
  } catch {
    answer(response, 500, "the gateway cannot read its store; see its log\n");
    return;
  }
  answerJson(response, 202, { stopping: true });
  control.stop(wanted === "stop" ? "stop" : "keep");
}

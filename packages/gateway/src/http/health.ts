import { answer, answerJson, type PlainRoute, pathOf } from "./dispatcher.ts";
import type { StoreProbe } from "./store-probe.ts";

/** What the readiness answer says of the gateway. */
export interface Readiness {
  readonly version: string;
  readonly probe: StoreProbe;
}

/** `GET /healthz`: the process serves requests. */
export const livenessRoute: PlainRoute = (request, response) => {
  if (pathOf(request) !== "/healthz") return false;
  if (request.method === "GET" || request.method === "HEAD") answer(response, 200, "ok\n");
  else answer(response, 405, "use GET\n");
  return true;
};

/** `GET /readyz` and `/health`: the gateway can do its work; 503 when it cannot. */
export function readinessRoute({ version, probe }: Readiness): PlainRoute {
  return (request, response) => {
    const path = pathOf(request);
    if (path !== "/readyz" && path !== "/health") return false;
    void probe().then(({ healthy, latencyMs }) => {
      const status = healthy ? "healthy" : "unhealthy";
      const database =
        latencyMs === undefined
          ? { status, error: "the database does not answer; see the gateway log" }
          : { status, latency_ms: Math.round(latencyMs * 1000) / 1000 };
      answerJson(response, healthy ? 200 : 503, { status, version, checks: { database } });
    });
    return true;
  };
}

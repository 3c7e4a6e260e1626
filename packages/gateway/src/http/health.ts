import { answer, answerJson, type PlainRoute, pathOf } from "./dispatcher.ts";

/** What the readiness answer says of the gateway. */
export interface Readiness {
  readonly version: string;
  /** Milliseconds of one trivial read; rejects when the store is not usable. */
  readonly checkStore: () => Promise<number>;
}

/** A store that does not answer within this is not ready. Milliseconds. */
const STORE_LIMIT_MS = 2_000;

/** `GET /healthz`: the process serves requests. */
export const livenessRoute: PlainRoute = (request, response) => {
  if (pathOf(request) !== "/healthz") return false;
  if (request.method === "GET" || request.method === "HEAD") answer(response, 200, "ok\n");
  else answer(response, 405, "use GET\n");
  return true;
};

/** `GET /readyz` and `/health`: the gateway can do its work; 503 when it cannot. */
export function readinessRoute(readiness: Readiness): PlainRoute {
  return (request, response) => {
    const path = pathOf(request);
    if (path !== "/readyz" && path !== "/health") return false;
    void databaseCheck(readiness).then((database) => {
      const ready = database.status === "healthy";
      const status = ready ? "healthy" : "unhealthy";
      answerJson(response, ready ? 200 : 503, { status, version: readiness.version, checks: { database } });
    });
    return true;
  };
}

interface DatabaseCheck {
  readonly status: "healthy" | "unhealthy";
  readonly latency_ms?: number;
  readonly error?: string;
}

async function databaseCheck(readiness: Readiness): Promise<DatabaseCheck> {
  let timer: NodeJS.Timeout | undefined;
  try {
    const limit = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new Error("no answer in time")), STORE_LIMIT_MS);
    });
    const latency = await Promise.race([readiness.checkStore(), limit]);
    return { status: "healthy", latency_ms: Math.round(latency * 1000) / 1000 };
  } catch {
    return { status: "unhealthy", error: "the database does not answer; see the gateway log" };
  } finally {
    clearTimeout(timer);
  }
}

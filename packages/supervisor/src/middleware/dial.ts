import { isIP, connect as netConnect, type Socket } from "node:net";
import { createSecureContext, type SecureContext, type TLSSocket, connect as tlsConnect } from "node:tls";
import { RuntimeError } from "@openshell/base";
import { MiddlewareLimit } from "./limits.ts";
import type { Service } from "./service.ts";

/** Codes of Node and OpenSSL that are repeated as they are; a text of the other side never is. */
const CODE = /^[A-Z][A-Z0-9_]{2,60}$/;

/**
 * A connection on which HTTP/2 may begin: TLS with a verified certificate, or plain where the operator permits that.
 * `roots` is the trust of the machine.
 *
 * @throws RuntimeError middleware_unreachable
 */
export async function dialService(
  service: Service,
  roots: () => SecureContext,
  signal: AbortSignal,
): Promise<Socket | TLSSocket> {
  const { endpoint, caPem } = service;
  const { host, port, secure } = endpoint;
  signal.throwIfAborted();
  let socket: Socket | TLSSocket;
  try {
    socket = secure
      ? tlsConnect({
          host,
          port,
          ALPNProtocols: ["h2"],
          rejectUnauthorized: true,
          secureContext: caPem === "" ? roots() : createSecureContext({ ca: caPem, minVersion: "TLSv1.2" }),
          ...(isIP(host) === 0 ? { servername: host } : {}),
        })
      : netConnect({ host, port });
  } catch (error) {
    throw unreachable(service, reasonOf(error), error);
  }
  socket.setNoDelay(true);
  const stop = new AbortController();
  const abort = AbortSignal.any([signal, stop.signal]);
  const timer = setTimeout(() => stop.abort(new Error("late")), MiddlewareLimit.connectMs).unref();
  const opened = Promise.withResolvers<void>();
  const closed = (): void => opened.reject(new Error("closed"));
  // Stays: until HTTP/2 takes over, a loss shows there.
  socket.on("error", opened.reject);
  socket.once("close", closed);
  socket.once(secure ? "secureConnect" : "connect", opened.resolve);
  abort.addEventListener("abort", () => opened.reject(abort.reason), { once: true });
  try {
    await opened.promise;
    if (secure && (socket as TLSSocket).alpnProtocol !== "h2") throw unreachable(service, "it does not speak HTTP/2");
    return socket;
  } catch (error) {
    socket.destroy();
    if (error instanceof RuntimeError) throw error;
    const late = stop.signal.aborted;
    throw unreachable(service, late ? `no connection within ${MiddlewareLimit.connectMs / 1000} s` : reasonOf(error));
  } finally {
    clearTimeout(timer);
    socket.off("close", closed);
  }
}

/** What went wrong, without a word of the other side. */
export function unreachable({ name, endpoint }: Service, reason: string, cause?: unknown): RuntimeError {
  const { host, port, secure } = endpoint;
  const where = `${secure ? "https" : "http"}://${host.includes(":") ? `[${host}]` : host}:${port}`;
  return new RuntimeError("middleware_unreachable", `middleware '${name}' at ${where}: ${reason}`, {
    next: "Start the service, or correct its entry in [[openshell.supervisor.middleware]] of gateway.toml",
    ...(cause === undefined ? {} : { cause }),
  });
}

function reasonOf(error: unknown): string {
  const code = (error as { readonly code?: unknown } | undefined)?.code;
  return typeof code === "string" && CODE.test(code) ? `no connection (${code})` : "no connection";
}

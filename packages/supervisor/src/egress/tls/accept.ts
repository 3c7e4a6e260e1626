import type { Socket } from "node:net";
import { type SecureContext, TLSSocket } from "node:tls";
import { RuntimeError, systemCode } from "@openshell/base";
import { type BufferBudget, Channel, type Deadlines } from "../channel.ts";
import type { FairShare } from "../fair-share.ts";
import { HANDSHAKE_MS } from "../limits.ts";

/** ALPN list in wire form: one entry, its length before it (RFC 7301 §3.1). */
const HTTP_1_1 = Buffer.from([8, ...Buffer.from("http/1.1")]);

/**
 * Takes the client's side of an inspected TLS connection. `channel` is used up; its unread bytes (the ClientHello) are
 * part of the handshake. Rejects with `tls_handshake_failed`, after the socket is gone.
 */
export function acceptTls(
  channel: Channel,
  secureContext: SecureContext,
  budget: BufferBudget,
  deadlines: Deadlines,
  share: FairShare,
): Promise<Channel> {
  const raw = channel.detach() as Socket;
  raw.on("error", () => undefined);
  const socket = new TLSSocket(raw, { isServer: true, secureContext, ALPNProtocols: HTTP_1_1 as unknown as string[] });
  return new Promise((resolve, reject) => {
    const fail = (cause: Error): void => {
      clearTimeout(timer);
      socket.on("error", () => undefined);
      socket.destroy();
      raw.destroy();
      const code = systemCode(cause) ?? "closed";
      reject(
        new RuntimeError("tls_handshake_failed", `The client broke off the TLS handshake (${code})`, {
          next: "If it does not trust the certificate, point it at the CA bundle named by SSL_CERT_FILE in the sandbox.",
          cause,
        }),
      );
    };
    const onClose = (): void => fail(Object.assign(new Error("closed"), { code: "ECONNRESET" }));
    const timer = setTimeout(() => fail(Object.assign(new Error("timed out"), { code: "ETIMEDOUT" })), HANDSHAKE_MS);
    socket.once("error", fail);
    socket.once("close", onClose);
    // Emitted on server sockets that belong to no server.
    socket.once("secure", () => {
      clearTimeout(timer);
      socket.off("error", fail);
      socket.off("close", onClose);
      resolve(new Channel(socket, budget, deadlines, share));
    });
  });
}

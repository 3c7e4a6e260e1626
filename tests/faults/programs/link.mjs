import { syncBuiltinESMExports } from "node:module";
import net from "node:net";

/**
 * Loaded before the host: its connections to the gateway's host socket go to `$OPENSHELL_TEST_HOST_SOCKET`, where a proxy
 * of the test listens. Without the variable nothing changes.
 */
export function relinkGateway() {
  const path = process.env.OPENSHELL_TEST_HOST_SOCKET;
  if (path === undefined) return;
  const connect = net.connect;
  net.connect = (...args) =>
    typeof args[0] === "string" && args[0].endsWith("/host.sock") ? connect(path, ...args.slice(1)) : connect(...args);
  syncBuiltinESMExports();
}

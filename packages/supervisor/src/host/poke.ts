import { chmod, unlink } from "node:fs/promises";
import { createServer, type Server } from "node:net";

/**
 * The host's poke socket: a connection to it means that the gateway listens again. It carries no data and grants
 * nothing; it only saves the rest of a back-off.
 */
export async function listenForPokes(path: string, onPoke: () => void): Promise<AsyncDisposable> {
  const server: Server = createServer({ pauseOnConnect: true }, (socket) => {
    socket.on("error", () => {});
    socket.destroy();
    onPoke();
  });
  server.maxConnections = 8;
  await unlink(path).catch(() => {});
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(path, () => {
      server.off("error", reject);
      resolve();
    });
  });
  await chmod(path, 0o600);
  return {
    [Symbol.asyncDispose]: async () => {
      await new Promise<void>((resolve) => server.close(() => resolve()));
      await unlink(path).catch(() => {});
    },
  };
}

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, it } from "vitest";
import { TestAuthority } from "../../support/internet/ca.ts";
import { mode } from "../../support/mode.ts";
import type { PairFiles } from "./behaviour.ts";
import { CONNECTIONS } from "./behaviours-connections.ts";
import { ENDINGS } from "./behaviours-endings.ts";
import { MESSAGES } from "./behaviours-messages.ts";
import { DIRECTIONS, makePair, type Pair, PEERS } from "./peers.ts";
import type { TlsFiles } from "./protocol.ts";

/** Our server and our client with the libraries of others, both ways. What a peer cannot do is skipped with the reason. */

let files: PairFiles;
const folder = mkdtempSync(join(tmpdir(), "peers-"));

beforeAll(async () => {
  const [authority, other] = [await TestAuthority.create(), await TestAuthority.create()];
  const server: TlsFiles = { ca: authority.pem, ...(await authority.issue(["localhost", "127.0.0.1"])) };
  const client: TlsFiles = { ca: authority.pem, ...(await authority.issue(["the client"], "valid", "clientAuth")) };
  const stranger: TlsFiles = { ca: authority.pem, ...(await other.issue(["the client"], "valid", "clientAuth")) };
  let sockets = 0;
  files = {
    tls: { server, client },
    untrusted: { server, client: stranger },
    socketPath: () => join(folder, `${++sockets}.sock`),
  };
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

for (const peer of PEERS) {
  for (const direction of DIRECTIONS) {
    // Nothing here depends on who runs it.
    describe.skipIf(mode === "user")(`${peer} ${direction}`, () => {
      let shared: Pair;
      beforeAll(async () => {
        shared = await makePair(peer, direction);
      });
      afterAll(() => shared?.[Symbol.asyncDispose]());
      for (const { name, pair: options, cannot, run } of [...MESSAGES, ...ENDINGS, ...CONNECTIONS]) {
        const reason = cannot?.[direction]?.[peer];
        it.skipIf(reason !== undefined)(reason === undefined ? name : `${name} (cannot: ${reason})`, async () => {
          if (options === undefined) return run(shared, direction);
          await using own = await makePair(peer, direction, options(files));
          await run(own, direction);
        });
      }
    });
  }
}

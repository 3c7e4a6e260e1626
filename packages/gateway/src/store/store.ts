import { admissionRepository } from "./admissions.ts";
import { isStoreError, StoreError } from "./errors.ts";
import { hostRepository } from "./hosts.ts";
import { idBlockRepository } from "./id-blocks.ts";
import { intentRepository } from "./intents.ts";
import { operationRepository } from "./operations.ts";
import { policyRepository } from "./policies.ts";
import { providerRepository } from "./providers.ts";
import { databaseVersion, ForeignCommits, ReadCache } from "./read-cache.ts";
import { sandboxRepository } from "./sandboxes.ts";
import { secretRepository } from "./secrets.ts";
import { settingsRepository } from "./settings.ts";
import { openReader, prepareDatabase } from "./sqlite.ts";
import { MAX_MODIFY_ATTEMPTS, type Store } from "./types.ts";
import { workspaceRepository } from "./workspaces.ts";
import { type ReserveUse, Writer } from "./writer.ts";

/** Bytes of rows behind the answers that are kept for reading them again. */
const READ_CACHE_BYTES = 4 * 1024 * 1024;
/** The same for settings and providers, which are read for every snapshot of every sandbox. */
const KEPT_BYTES = 2 * 1024 * 1024;

/**
 * Opens the SQLite store at `path`, creating and migrating it as needed. The caller holds the gateway's lock.
 *
 * @throws RuntimeError store_unusable, store_too_new
 */
export async function openStore(path: string, reserve?: ReserveUse): Promise<Store> {
  prepareDatabase(path);
  const writer = await Writer.open(path, reserve);
  const reader = openReader(path);
  const { db } = reader;
  const foreign = new ForeignCommits({
    own: () => writer.commits.own,
    anybody: reader.version,
    foundByWriter: () => writer.commits.foreign,
    look: () => writer.look(),
  });
  const whileOpen = (settled: () => number | undefined): (() => number | undefined) => {
    const version = databaseVersion(settled, () => foreign.count);
    return () => {
      reader.assertOpen();
      return version();
    };
  };
  const cache = new ReadCache(
    whileOpen(() => writer.commits.settled),
    READ_CACHE_BYTES,
  );
  const contentsVersion = whileOpen(() => writer.commits.settledContents);
  const kept = new ReadCache(
    whileOpen(() => writer.commits.settledKept),
    KEPT_BYTES,
  );
  const sandboxes = sandboxRepository(reader, cache);
  const write: Store["write"] = (...commands) => writer.write(...commands);

  return {
    workspaces: workspaceRepository(reader, cache),
    sandboxes,
    policies: policyRepository(reader),
    settings: settingsRepository(reader, kept),
    providers: providerRepository(reader, kept),
    secrets: secretRepository(db),
    admissions: admissionRepository(db),
    hosts: hostRepository(db),
    intents: intentRepository(db),
    idBlocks: idBlockRepository(db),
    operations: operationRepository(reader),
    write,
    async modifySandbox(id, mutate) {
      for (let attempt = 1; ; attempt++) {
        const record = await sandboxes.byId(id);
        if (record === undefined) {
          throw new StoreError("store_not_found", "the sandbox does not exist", { subject: "sandbox" });
        }
        const change = mutate(record);
        if (change === undefined) return record;
        try {
          const [resourceVersion] = await write(
            sandboxes.update(id, record.resourceVersion, change.patch),
            ...(change.also ?? []),
          );
          return { ...record, ...change.patch, resourceVersion };
        } catch (error) {
          const beaten = isStoreError(error, "store_conflict") && error.subject === "sandbox";
          if (!beaten || attempt >= MAX_MODIFY_ATTEMPTS) throw error;
        }
      }
    },
    contentsVersion,
    async check() {
      const start = performance.now();
      if (writer.lost !== undefined) throw writer.lost;
      reader.probe();
      return performance.now() - start;
    },
    get failed() {
      return writer.failed;
    },
    async [Symbol.asyncDispose]() {
      // Readers first: the last connection to close folds the WAL back into the file, and that must be the writer.
      reader[Symbol.dispose]();
      await writer[Symbol.asyncDispose]();
    },
  };
}

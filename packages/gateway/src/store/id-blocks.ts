import { type Kysely, sql } from "kysely";
import { command, statement } from "./command.ts";
import type { Tables } from "./schema.ts";
import type { IdBlockRepository } from "./types.ts";

/** Ids of one block: everything that a 16-bit image or a user namespace may name. */
export const IDS_PER_BLOCK = 65_536;
/**
 * First id of block 0. 0x7000_0000 to 0x7FFD_FFFF is free of systemd's, NSS's and containers' customary ranges
 * (https://systemd.io/UIDS-GIDS/).
 */
export const FIRST_BLOCK_ID = 0x7000_0000;
/** Blocks up to 0x7FFD_FFFF. */
export const MAX_BLOCKS = 4_094;

/** The first host id of a block. */
export function firstIdOf(index: number): number {
  return FIRST_BLOCK_ID + index * IDS_PER_BLOCK;
}

export function idBlockRepository(db: Kysely<Tables>): IdBlockRepository {
  return {
    async of(sandboxId) {
      const row = await db.selectFrom("id_blocks").selectAll().where("sandbox_id", "=", sandboxId).executeTakeFirst();
      return row && { index: Number(row.block), sandboxId: row.sandbox_id };
    },
    async all() {
      const rows = await db.selectFrom("id_blocks").selectAll().orderBy("block").execute();
      return rows.map((row) => ({ index: Number(row.block), sandboxId: row.sandbox_id }));
    },
    allot(sandboxId) {
      // The lowest number without a row: 0, or a successor of a row that has no row itself.
      const insert = sql`
        insert into id_blocks (block, sandbox_id)
        select free.block, ${sandboxId} from (
          select min(candidate.block) as block from (
            select 0 as block union all select block + 1 from id_blocks
          ) as candidate
          where not exists (select 1 from id_blocks taken where taken.block = candidate.block)
        ) as free
        where free.block < ${MAX_BLOCKS}
          and not exists (select 1 from id_blocks own where own.sandbox_id = ${sandboxId})`;
      const own = db.selectFrom("id_blocks").select("block").where("sandbox_id", "=", sandboxId);
      return {
        statements: [
          statement("host ids", { compile: () => insert.compile(db) }),
          statement("host ids", own, { expect: { rows: 1, otherwise: "store_limit_reached" }, returning: true }),
        ],
        result: ([, rows]) => Number(rows![0]!.block),
      };
    },
    release(sandboxId) {
      return command(statement("host ids", db.deleteFrom("id_blocks").where("sandbox_id", "=", sandboxId)));
    },
  };
}

import { z } from "zod";
import { DriverError } from "../driver.ts";
import { FIRST_BLOCK_ID, ID_BLOCKS } from "./identity.ts";
import { ImageLimit } from "./image/limits.ts";

/** Linux's PATH_MAX without its NUL. Bytes. */
const MAX_PATH_BYTES = 4_095;

/** A folder or file of this machine, as a configuration may name it. */
export const absolutePath = z
  .string()
  .refine(
    (text) =>
      text.startsWith("/") &&
      !text.split("/").includes("..") &&
      !text.includes("\0") &&
      Buffer.byteLength(text) <= MAX_PATH_BYTES,
    { error: "must be an absolute path without .." },
  );

/** `[local]` of gateway.toml. Every value has a default; unknown keys are refused. */
export const localDriverTable = z.strictObject({
  /** Folders that any caller may mount volumes from. */
  volume_roots: z.array(absolutePath).max(64).default([]),
  /** Folders below which any caller may name root file systems and archives of them; all of their files can be read inside. */
  image_roots: z.array(absolutePath).max(64).default([]),
  /** An unpacked image that no sandbox uses is kept for so long, seconds; 0 removes it with its last sandbox. */
  image_keep_seconds: z.int().min(0).max(31_536_000).default(3_600),
  /** Bytes of an archive of a root file system, and of what it unpacks to. */
  rootfs_tar_max_bytes: z
    .int()
    .min(1 << 20)
    .default(ImageLimit.bytes),
  /** Processes of a sandbox that asks for no limit of its own. */
  sandbox_pids_limit: z.int().min(16).max(4_194_304).default(2_048),
  /** Memory of a sandbox that asks for none, bytes; 0 leaves it to the machine. */
  sandbox_memory_limit: z.int().min(0).default(0),
  /**
   * What a sandbox's home and the writable layer of its image may take on the disk, bytes; 0 for no limit. Watched, not
   * prevented: a sandbox beyond it is stopped within about half a minute.
   */
  sandbox_disk_limit: z
    .int()
    .min(0)
    .default(20 * 2 ** 30),
  /** Size of the private /tmp, bytes. It counts as the sandbox's memory. */
  tmp_size: z
    .int()
    .min(1 << 20)
    .default(2 * 2 ** 30),
  /** First host id and number of 65,536-id blocks for sandboxes of a gateway that runs as root. */
  id_range_start: z.int().min(65_536).max(0xffff_0000).default(FIRST_BLOCK_ID),
  id_range_blocks: z.int().min(1).max(65_535).default(ID_BLOCKS),
});

export type LocalDriverConfig = Readonly<z.infer<typeof localDriverTable>>;

/** Checks the driver's table. Throws `invalid_driver_config` that names every wrong key. */
export function parseLocalDriverConfig(table: unknown): LocalDriverConfig {
  const result = localDriverTable.safeParse(table ?? {});
  if (!result.success) {
    const problems = result.error.issues.map((issue) => `${issue.path.join(".") || "table"}: ${issue.message}`);
    throw new DriverError("invalid_driver_config", `[local] ${problems.join("; ")}`, {
      next: `Known keys: ${Object.keys(localDriverTable.shape).join(", ")}`,
    });
  }
  const problem = idRangeProblem(result.data);
  if (problem !== undefined) {
    throw new DriverError("invalid_driver_config", `[local] id_range_blocks: ${problem}`, {
      next: "Lower id_range_start or id_range_blocks",
    });
  }
  return result.data;
}

/** What is wrong with the two values together. */
export function idRangeProblem(
  table: Pick<LocalDriverConfig, "id_range_start" | "id_range_blocks">,
): string | undefined {
  const last = table.id_range_start + table.id_range_blocks * 65_536;
  return last > 0xffff_ffff ? "the range ends beyond the last id" : undefined;
}

import { constants, existsSync, statSync } from "node:fs";
import { copyFile } from "node:fs/promises";
import { basename, dirname } from "node:path";
import { systemCode } from "@openshell/base/errors.ts";
import { type Context, missingInAnswer } from "../context.ts";
import { CliError } from "../errors.ts";
import { Progress } from "../output/progress.ts";

/**
 * Copies an archive to a gateway that does not take paths of this caller, and returns the token that names it once. The
 * gateway has to be on this machine, under the same user (or this user is root): the copy goes through the file system.
 */
export async function stageArchive(context: Context, archive: string): Promise<string> {
  const answer = await context.call("BeginRootfsTarStaging", {
    workspaceScope: context.scope,
    fileName: basename(archive),
    sizeBytes: String(statSync(archive).size),
  });
  const { stagingToken: token, uploadPath: path } = answer;
  if (typeof token !== "string" || token === "") throw missingInAnswer("staging token");
  if (typeof path !== "string" || !path.startsWith("/")) throw missingInAnswer("upload path");
  using _progress = Progress.start(context.surroundings.stderr, context.err, "Copying the archive to the gateway");
  try {
    // A clone where the file system can, which takes no time; never over something that is there.
    await copyFile(archive, path, constants.COPYFILE_EXCL | constants.COPYFILE_FICLONE);
  } catch (error) {
    throw uploadFailed(path, error);
  }
  return token;
}

function uploadFailed(path: string, error: unknown): CliError {
  const code = systemCode(error);
  const elsewhere = code === "ENOENT" && !existsSync(dirname(path));
  const foreign = code === "EACCES" || code === "EPERM";
  const why = elsewhere
    ? `the gateway's folder for archives (${dirname(path)}) is not on this machine`
    : foreign
      ? `the gateway's folder for archives (${dirname(path)}) is another user's`
      : `the archive cannot be copied to ${path} (${code ?? (error as Error).message})`;
  return new CliError(why, {
    code: "archive_not_staged",
    next:
      elsewhere || foreign
        ? `Copy it to the gateway's machine, below a folder of [local] image_roots, and name it there: --driver-config-json '{"local":{"root":"/path/on/the/gateway.tar"}}'`
        : "Free space where the gateway keeps its state, then try again",
    cause: error,
  });
}

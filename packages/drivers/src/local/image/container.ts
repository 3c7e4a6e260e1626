import { createReadStream, lstatSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { escapeUntrusted } from "@openshell/base";
import { z } from "zod";
import { decompressed } from "./decompress.ts";
import { ImageLimit } from "./limits.ts";
import { badArchive, belowRoot } from "./tar.ts";
import type { Unpacker } from "./unpack.ts";

/** What an image says of the processes that run in it. */
export interface ImageConfig {
  /** `user[:group]`, names or numbers; empty for root. */
  readonly user: string;
  readonly env: readonly string[];
  /** Empty for none. */
  readonly workingDirectory: string;
}

export const NO_CONFIG: ImageConfig = { user: "", env: [], workingDirectory: "" };

/** manifest.json of `docker save` and `podman save`; every version writes it. */
const manifestSchema = z.array(z.object({ Config: z.string(), Layers: z.array(z.string()) })).min(1);

const configSchema = z.object({
  config: z
    .object({
      User: z.string().nullish(),
      Env: z.array(z.string()).nullish(),
      WorkingDir: z.string().nullish(),
    })
    .nullish(),
});

/** True when an unpacked archive is an image in layers instead of a root file system. */
export function isContainerImage(folder: string): boolean {
  const has = (name: string) => lstatSync(join(folder, name), { throwIfNoEntry: false }) !== undefined;
  const root = ["bin", "usr", "etc", "lib", "sbin"].some(has);
  return !root && (has("manifest.json") || has("oci-layout"));
}

/** Unpacks the layers of an image, lowest first, and returns its configuration. Throws `image_invalid`. */
export async function unpackContainerImage(folder: string, unpacker: Unpacker): Promise<ImageConfig> {
  const manifests = document(folder, "manifest.json", manifestSchema);
  if (manifests.length > 1) {
    throw badArchive(`it holds ${manifests.length} images`, "Save one image: `docker save IMAGE -o x.tar`");
  }
  const { Config, Layers } = manifests[0]!;
  if (Layers.length > ImageLimit.layers)
    throw badArchive(`it has ${Layers.length} layers, at most ${ImageLimit.layers}`);
  const { config } = document(folder, Config, configSchema);
  for (const layer of Layers) {
    await unpacker.archive(await decompressed(createReadStream(plainFile(folder, layer))), true);
  }
  return { user: config?.User ?? "", env: config?.Env ?? [], workingDirectory: config?.WorkingDir ?? "" };
}

function document<T>(folder: string, name: string, schema: z.ZodType<T>): T {
  const path = plainFile(folder, name);
  if (lstatSync(path).size > ImageLimit.documentBytes) throw badArchive(`its ${shown(name)} is too large`);
  try {
    return schema.parse(JSON.parse(readFileSync(path, "utf8")));
  } catch (error) {
    throw badArchive(`its ${shown(name)} is not what an image has: ${reason(error)}`);
  }
}

/** The first thing that is wrong with a document, in one line. */
function reason(error: unknown): string {
  const issue = error instanceof z.ZodError ? error.issues[0] : undefined;
  if (issue === undefined) return (error as Error).message.slice(0, 200);
  const place = issue.path.map(String).join(".");
  return `${place === "" ? "" : `${place.slice(0, 80)}: `}${issue.message.slice(0, 200)}`;
}

function shown(name: string): string {
  return escapeUntrusted(name, 80);
}

/** A file of the unpacked archive. Docker links equal layers to each other; whatever else is a link is refused. */
function plainFile(folder: string, name: string): string {
  const parts = belowRoot(Buffer.from(name).toString("latin1")).split("/");
  for (let depth = 1; depth <= parts.length; depth++) {
    const stat = lstatSync(join(folder, ...parts.slice(0, depth)), { throwIfNoEntry: false });
    if (stat === undefined || !(depth < parts.length ? stat.isDirectory() : stat.isFile())) {
      throw badArchive(`its ${shown(name)} is missing`, "Save the image again: `docker save IMAGE -o x.tar`");
    }
  }
  return join(folder, ...parts);
}

import { chown } from "node:fs/promises";
import { join } from "node:path";
import { ensureFolder } from "@openshell/base";
import type { IsolationLayer } from "@openshell/boundary";
import { DriverError, type OnProgress, type SandboxIntent } from "../../driver.ts";
import type { ResolvedIntent } from "../resolve.ts";
import { type ImageReference, makeFolder, type SandboxFolders } from "../state.ts";
import { NO_CONFIG } from "./container.ts";
import { type ImageFacts, imageFacts } from "./facts.ts";
import { repairUpper, writeSeed } from "./seed.ts";
import type { ImageStore } from "./store.ts";

/** Finds the image of a sandbox, unpacks it at its creation, and remembers which one it is. Undefined: the host's system. */
export async function prepareImage(
  intent: SandboxIntent,
  kind: "folder" | "archive" | undefined,
  folders: SandboxFolders,
  store: ImageStore,
  onProgress: OnProgress,
): Promise<ImageFacts | undefined> {
  if (intent.root.kind === "host") return undefined;
  const { sandboxId } = intent;
  const { source } = intent.root;
  const known = await folders.readImage(sandboxId);
  if (known !== undefined) return factsOf(known, store);
  if (kind === undefined) {
    throw new DriverError("image_unavailable", "the sandbox's image was never prepared", {
      next: "Delete it and create it again",
    });
  }
  if (kind === "folder") {
    await folders.writeImage(sandboxId, { kind, path: source });
    return imageFacts(source, NO_CONFIG);
  }
  await using image = await store.acquire(source, onProgress);
  await folders.writeImage(sandboxId, { kind, digest: image.digest });
  return imageFacts(image.root, image.config);
}

function factsOf(reference: ImageReference, store: ImageStore): ImageFacts {
  if (reference.kind === "folder") return imageFacts(reference.path, NO_CONFIG);
  const { root, config } = store.get(reference.digest);
  return imageFacts(root, config);
}

/** Writable layer and seed of an image root, before each launch. Nothing of the sandbox runs. */
export async function prepareLayers(
  sandboxId: string,
  resolved: ResolvedIntent,
  folders: SandboxFolders,
  mode: "root" | "user",
): Promise<void> {
  const { identity, image, seed } = resolved;
  if (image === undefined) return;
  const overlay = folders.overlay(sandboxId);
  const upper = join(overlay, "upper");
  for (const [path, access] of [
    [overlay, 0o700],
    [upper, 0o755],
    [join(overlay, "work"), 0o700],
  ] as const) {
    await makeFolder(path, access);
    // Inner root mounts the overlay, and its ids are the only ones that the mount knows.
    if (mode === "root") await chown(path, ...outsideRoot(identity.plan));
  }
  await repairUpper(upper, seed);
  const { uid, gid } = identity.plan;
  const agent = mode === "root" ? { uid, gid } : undefined;
  await writeSeed({ folder: folders.seed(sandboxId), imageRoot: image.root, agent }, seed);
}

function outsideRoot(plan: ResolvedIntent["identity"]["plan"]): [uid: number, gid: number] {
  const outside = (map: typeof plan.uidMap) => map.find(({ inside }) => inside === 0)!.outside;
  return [outside(plan.uidMap), outside(plan.gidMap)];
}

/** Digests that sandboxes with a folder use; `unknown` while one of them has a reference that cannot be read, but may be restored. */
export async function usedImages(folders: SandboxFolders): Promise<ReadonlySet<string> | "unknown"> {
  const used = new Set<string>();
  for (const id of await folders.ids()) {
    const image = await folders.readImage(id).catch(() => "unknown" as const);
    if (image === "unknown") return "unknown";
    if (image?.kind === "archive") used.add(image.digest);
  }
  return used;
}

/** What an image root gives up where the agent has one id only. */
export function imageLayer(image: ImageFacts | undefined, mode: "root" | "user"): readonly IsolationLayer[] {
  if (image === undefined) return [];
  const declared =
    image.config.user === "" ? "" : `; the image's USER ${JSON.stringify(image.config.user.slice(0, 64))}`;
  if (mode === "user") {
    const ignored = declared === "" ? "" : `${declared} is not available`;
    const detail = `every file of the image is the agent's own, other owners and chown do not exist: the gateway does not run as root${ignored}`;
    return [{ name: "image_owners", enforced: false, detail }];
  }
  const user =
    declared === "" ? "" : image.user === undefined ? `${declared} is root or nobody and not taken` : declared;
  return [{ name: "image_owners", enforced: true, detail: `owners as in the image${user}` }];
}

/** The folder of unpacked images. */
export async function imagesFolder(state: string): Promise<string> {
  const folder = join(state, "images");
  await ensureFolder(folder);
  return folder;
}

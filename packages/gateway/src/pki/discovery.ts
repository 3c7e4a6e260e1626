import { join } from "node:path";
import { ensureFolder, writeFileAtomic } from "@openshell/base";
import { readTextFile, UnusableFile } from "@openshell/base/read-file.ts";

/** Registrations are a few hundred bytes. */
const MAX_BYTES = 1024 * 1024;
/** Stands for what is there and cannot be read: it is nobody's but its owner's to replace. */
const UNREADABLE = "unreadable";

/** Where clients find this gateway without being told, as released clients look. */
export interface DiscoveryOptions {
  /** `clientConfigRoot()`. */
  readonly root: string;
  readonly name: string;
  readonly endpoint: string;
  readonly port: number;
  readonly authMode: "mtls" | "plaintext";
}

/** What became of the files, for the log. */
export type DiscoveryOutcome = "written" | "unchanged" | "foreign";

/** Folder of one gateway's client files. */
export function clientFolder(root: string, name: string): string {
  return join(root, "gateways", name);
}

/**
 * Writes `metadata.json`, and `active_gateway` when no gateway is active. A registration of the same name that somebody
 * made for another machine is left alone, and so is one that cannot be read: it may be one.
 */
export async function writeDiscovery(options: DiscoveryOptions): Promise<DiscoveryOutcome> {
  const { root, name, endpoint, port, authMode } = options;
  const folder = clientFolder(root, name);
  await ensureFolder(folder);
  const path = join(folder, "metadata.json");
  const existing = readText(path);
  if (existing !== undefined && isForeign(existing)) return "foreign";
  const metadata = { name, gateway_endpoint: endpoint, is_remote: false, gateway_port: port, auth_mode: authMode };
  const text = `${JSON.stringify(metadata, undefined, 2)}\n`;
  const changed = text !== existing;
  if (changed) await writeFileAtomic(path, text);
  const activePath = join(root, "active_gateway");
  const active = readText(activePath);
  if (active === undefined || active.trim() === "") await writeFileAtomic(activePath, `${name}\n`);
  return changed ? "written" : "unchanged";
}

/** The port that an earlier start of this gateway registered; undefined when there is none. */
export async function registeredPort(root: string, name: string): Promise<number | undefined> {
  const text = readText(join(clientFolder(root, name), "metadata.json"));
  if (text === undefined || isForeign(text)) return undefined;
  try {
    const { gateway_port: port } = JSON.parse(text) as { readonly gateway_port?: unknown };
    return typeof port === "number" && Number.isInteger(port) && port > 0 && port <= 65_535 ? port : undefined;
  } catch {
    return undefined;
  }
}

function isForeign(text: string): boolean {
  if (text.trim() === "") return false;
  try {
    const value = JSON.parse(text) as { readonly is_remote?: unknown } | null;
    return value === null || typeof value !== "object" || value.is_remote === true;
  } catch {
    return true;
  }
}

function readText(path: string): string | undefined {
  try {
    return readTextFile(path, MAX_BYTES);
  } catch (error) {
    if (!(error instanceof UnusableFile)) throw error;
    return error.missing ? undefined : UNREADABLE;
  }
}

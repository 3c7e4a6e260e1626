import { closeSync, readFileSync } from "node:fs";
import { RuntimeError } from "@openshell/base";

/** What a host is told by the gateway that starts it, on descriptor 3 (docs/architecture/overview.md). */
export interface HostStart {
  /** 32 bytes in hex; proves the host to the gateway. */
  readonly secret: string;
  readonly hostId: string;
  readonly gatewaySocket: string;
  /** Where a starting gateway pokes this host to dial again at once. */
  readonly controlSocket: string;
  readonly logFile: string;
  /** Held while this process lives. */
  readonly lockFile: string;
  readonly build: string;
}

const TEXT_FIELDS = ["secret", "hostId", "gatewaySocket", "controlSocket", "logFile", "lockFile", "build"] as const;

/** Reads the line and closes the descriptor, so that nothing this process starts can read it again. */
export function readHostStart(fd = 3): HostStart {
  let text: string;
  try {
    text = readFileSync(fd, "utf8");
    closeSync(fd);
  } catch (cause) {
    throw new RuntimeError("not_started_by_gateway", "a supervisor host is started by the gateway, not by hand", {
      next: "Run `openshell gateway start`",
      cause,
    });
  }
  return parseHostStart(text);
}

export function parseHostStart(text: string): HostStart {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    value = undefined;
  }
  const record = (typeof value === "object" && value !== null ? value : {}) as Record<string, unknown>;
  for (const field of TEXT_FIELDS) {
    if (typeof record[field] !== "string" || record[field] === "") {
      // The text holds the secret: only the field's name may be shown.
      throw new RuntimeError("invalid_host_start", `the gateway's start line lacks ${field}`, {
        next: "Gateway and host must be of one build",
      });
    }
  }
  if (!/^[0-9a-f]{64}$/.test(record["secret"] as string)) {
    throw new RuntimeError("invalid_host_start", "the gateway's start line has a malformed secret", {
      next: "Gateway and host must be of one build",
    });
  }
  return record as unknown as HostStart;
}

import { RotatingFile, type RotationLimits } from "@openshell/base/rotating-file.ts";
import { type Logger, pino, stdSerializers } from "pino";
import { REDACTED } from "../auth/secret.ts";
import type { LogLevel } from "../config/config.ts";

/** 64 MiB in all. */
const GATEWAY_LOG_LIMITS: RotationLimits = { fileBytes: 16 * 1024 * 1024, oldFiles: 3 };

/** The gateway's log and the means to bring it to disk. */
export interface GatewayLog extends Disposable {
  readonly log: Logger;
  flush(): void;
}

/**
 * Field names whose values never belong into a log, should one ever be passed by mistake. The rule stays that secrets are
 * `Secret` values, which print as nothing.
 */
const SECRET_FIELDS = [
  "secret",
  "token",
  "password",
  "credential",
  "credentials",
  "authorization",
  "privateKeyPem",
  "nonce",
];

/** JSON lines in `path`, rotated. */
export function openGatewayLog(path: string, level: LogLevel): GatewayLog {
  const file = RotatingFile.open(path, GATEWAY_LOG_LIMITS);
  const log = pino(
    {
      level,
      base: { pid: process.pid },
      timestamp: () => `,"time":"${new Date().toISOString()}"`,
      formatters: { level: (label) => ({ level: label }) },
      serializers: { err: stdSerializers.errWithCause },
      redact: { paths: SECRET_FIELDS.flatMap((field) => [field, `*.${field}`]), censor: REDACTED },
    },
    file,
  );
  return { log, flush: () => file.flush(), [Symbol.dispose]: () => file[Symbol.dispose]() };
}

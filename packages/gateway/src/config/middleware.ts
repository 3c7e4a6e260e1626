import { isIP } from "node:net";
import { absolutePath } from "@openshell/drivers/local/config.ts";
import { z } from "zod";

/** Largest payload that a service may be registered for, as the public contract says. Bytes. */
const MAX_PAYLOAD_BYTES = 4 * 1024 * 1024;
/** Bounds of the time for one call, and what it is unless the file says otherwise. Milliseconds. */
const TIMEOUT = { minimum: 10, maximum: 30_000, default: 500 } as const;
/** Names that begin so are of middlewares that run inside the supervisor. */
const RESERVED = "openshell/";

/** One service that policies may name, as gateway.toml registers it. */
export interface MiddlewareRegistration {
  readonly name: string;
  /** `http://` or `https://`, host and port; nothing else. */
  readonly endpoint: string;
  /** The only roots that its certificate may come from, path and content as read at start; undefined: those of the machine. */
  readonly ca: { readonly path: string; readonly pem: string } | undefined;
  readonly audience: string;
  readonly allowInsecureTransport: boolean;
  /** Bytes. */
  readonly maxPayloadBytes: number;
  /** Milliseconds. */
  readonly timeoutMs: number;
}

/** `500ms` or `2s` in milliseconds; undefined for anything else, and beyond the bounds. */
function milliseconds(text: string): number | undefined {
  const match = /^(\d{1,6})(ms|s)$/.exec(text);
  if (match === null) return undefined;
  const value = Number(match[1]) * (match[2] === "s" ? 1_000 : 1);
  return value >= TIMEOUT.minimum && value <= TIMEOUT.maximum ? value : undefined;
}

/** Why a text is not the address of a service; it is not repeated, since it could hold a password. */
function endpointProblem(text: string): string | undefined {
  const url = URL.parse(text);
  if (url === null || !/^https?:\/\//.test(text)) return "must be http://host:port or https://host:port";
  if (url.username !== "" || url.password !== "") return "must not carry a user or password";
  if (url.pathname !== "/" || url.search !== "" || url.hash !== "") return "must end after host and port";
  return undefined;
}

const table = z.strictObject({
  name: z
    .string()
    .regex(/^[A-Za-z0-9._/-]{1,128}$/, { error: "must have 1 to 128 letters, digits or any of . _ / -" })
    .refine((name) => !name.startsWith(RESERVED), { error: `must not begin with ${RESERVED}, which is built in` }),
  grpc_endpoint: z.string().superRefine((text, context) => {
    const problem = endpointProblem(text);
    if (problem !== undefined) context.addIssue({ code: "custom", message: problem });
  }),
  tls_ca_cert_path: absolutePath.optional(),
  audience: z.string().min(1).max(256).optional(),
  allow_insecure_transport: z.boolean().optional(),
  max_payload_bytes: z.number().int().min(1).max(MAX_PAYLOAD_BYTES),
  timeout: z
    .string()
    .refine((text) => milliseconds(text) !== undefined, { error: 'must be "Nms" or "Ns", from 10ms to 30s' })
    .optional(),
});

/** `[[openshell.supervisor.middleware]]`: at most 32 services, each name once. */
export const middlewareTables = z
  .array(
    table.superRefine(({ grpc_endpoint, allow_insecure_transport, tls_ca_cert_path }, context) => {
      const plain = grpc_endpoint.startsWith("http://");
      if (plain && allow_insecure_transport !== true) {
        const message = "is http: use https, or set allow_insecure_transport = true";
        context.addIssue({ code: "custom", path: ["grpc_endpoint"], message });
      }
      if (plain && tls_ca_cert_path !== undefined)
        context.addIssue({
          code: "custom",
          path: ["tls_ca_cert_path"],
          message: "means nothing with an http endpoint",
        });
    }),
  )
  .max(32)
  .superRefine((tables, context) => {
    for (const [index, { name }] of tables.entries()) {
      if (tables.findIndex((other) => other.name === name) === index) continue;
      context.addIssue({ code: "custom", path: [index, "name"], message: `'${name}' is registered twice` });
    }
  });

/** `readCa` reads a file of certificates, or throws what is wrong with it. */
export function registrations(
  tables: z.infer<typeof middlewareTables> | undefined,
  readCa: (path: string) => { readonly path: string; readonly pem: string },
): readonly MiddlewareRegistration[] {
  return (tables ?? []).map((entry) => ({
    name: entry.name,
    endpoint: URL.parse(entry.grpc_endpoint)!.origin,
    ca: entry.tls_ca_cert_path === undefined ? undefined : readCa(entry.tls_ca_cert_path),
    audience: entry.audience ?? `urn:openshell:extension:middleware:${entry.name}`,
    allowInsecureTransport: entry.allow_insecure_transport ?? false,
    maxPayloadBytes: entry.max_payload_bytes,
    timeoutMs: milliseconds(entry.timeout ?? "") ?? TIMEOUT.default,
  }));
}

/** Where a service listens: `IP:port`, or `name:port`. */
export function deniedEndpoint({ endpoint }: Pick<MiddlewareRegistration, "endpoint">): {
  readonly host: string;
  readonly port: number;
  readonly literal: boolean;
} {
  const url = new URL(endpoint);
  const host = url.hostname.replace(/^\[|\]$/g, "");
  const port = Number(url.port) || (url.protocol === "https:" ? 443 : 80);
  return { host, port, literal: isIP(host) !== 0 };
}

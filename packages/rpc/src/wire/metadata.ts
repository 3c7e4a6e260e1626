import type { Fields } from "./status.ts";

/** Fields that belong to HTTP or to gRPC; metadata never carries them. */
const RESERVED =
  /^(:|grpc-|(connection|content-length|content-type|host|keep-alive|proxy-connection|te|trailer|transfer-encoding|upgrade)$)/;

/** Adds metadata to fields that will be sent; what is reserved is left out. */
export function addMetadata(target: Record<string, string>, metadata: Headers | undefined): void {
  metadata?.forEach((value, name) => {
    if (!RESERVED.test(name)) target[name] = value;
  });
}

/** Received fields as fetch's Headers, protocol fields included. */
export function toHeaders(fields: Fields): Headers {
  const headers = new Headers();
  for (const name of Object.keys(fields)) {
    if (name.startsWith(":")) continue;
    const value = fields[name];
    if (Array.isArray(value)) for (const item of value) headers.append(name, item);
    else if (value !== undefined) headers.set(name, String(value));
  }
  return headers;
}

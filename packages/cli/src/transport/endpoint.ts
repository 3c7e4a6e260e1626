/** Where a gateway is reached. */
export type Endpoint =
  /** The embedded gateway's user socket: the caller is known by its uid. */
  | { readonly kind: "unix"; readonly path: string }
  | { readonly kind: "tcp"; readonly url: URL; readonly tls: TlsFiles | undefined };

/** Material for TLS; `ca` undefined means the system's roots. */
export interface TlsFiles {
  readonly ca: string | undefined;
  readonly cert: string | undefined;
  readonly key: string | undefined;
  /** False only where the person asked for it (`--gateway-insecure`); no client certificate is sent then. */
  readonly verify: boolean;
}

export const SERVICE_PATH = "/openshell.v1.OpenShell/";

/** How an endpoint is called in messages. */
export function describeEndpoint(endpoint: Endpoint): string {
  return endpoint.kind === "unix" ? endpoint.path : endpoint.url.href.replace(/\/$/, "");
}

/** Options of node:tls for an endpoint. Verification is written out at every dial. */
export function tlsOptions(tls: TlsFiles | undefined) {
  if (tls === undefined) return {};
  const { ca, cert, key, verify } = tls;
  return {
    ...(ca === undefined ? {} : { ca }),
    ...(cert === undefined || key === undefined || !verify ? {} : { cert, key }),
    rejectUnauthorized: verify,
    minVersion: "TLSv1.2" as const,
  };
}

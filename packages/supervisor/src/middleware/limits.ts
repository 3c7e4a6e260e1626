/** Numbers of middleware services, each with its reason. */
export const MiddlewareLimit = {
  /** TCP and TLS of one connection. Milliseconds. */
  connectMs: 5_000,
  /** Everything that a change of configuration waits for: the services are asked at the same time. Milliseconds. */
  prepareMs: 10_000,
  /** Largest payload that any service takes, as the public contract says. Bytes. */
  payloadBytes: 4 * 1024 * 1024,
  /** Bounds of the time for one call, and what it is unless an operator says otherwise. Milliseconds. */
  timeoutMinimumMs: 10,
  timeoutMaximumMs: 30_000,
  timeoutMs: 500,
  /** Bindings that a manifest may list: every pair of the operations and phases that there are, and room for later ones. */
  bindings: 16,
  /** Name, version and audience in a manifest, characters. */
  text: 256,
  /** A manifest, or an answer about settings, is small. Bytes. */
  answerBytes: 64 * 1024,
  /** Between two attempts to reach a service that is away; doubled up to the second. Milliseconds. */
  retryMinimumMs: 500,
  retryMaximumMs: 30_000,
  /** An idle connection is pinged so often, and given up when no answer comes in time. Milliseconds. */
  pingIntervalMs: 10_000,
  pingTimeoutMs: 20_000,
} as const;

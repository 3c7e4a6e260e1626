/** Bounds of the gateway's listeners. */
export const HttpLimits = {
  /** A connection that has not said what it speaks, or not finished its HTTP/2 preface, is closed after this. Milliseconds. */
  firstBytesMs: 10_000,
  /** TLS handshakes end within this. Milliseconds. */
  handshakeMs: 10_000,
  /** Connections of one listener. A user socket serves one person; a TCP port a team's clients. */
  connections: 4_096,
  /** Pending accepts in the kernel. */
  backlog: 1_024,
  /** Concurrent calls on one client connection; an SDK may run hundreds of executions over one. */
  streams: 1_000,
  /** Concurrent streams of one host: one each sandbox, relay and exec. */
  hostStreams: 16_384,
  /**
   * Strangers are connections that proved nothing: health checks, reflection, whoever forgot the certificate. What they may
   * have unfinished in memory is the product of these three: 256 MiB.
   */
  strangerConnections: 256,
  strangerStreams: 16,
  strangerMessageBytes: 64 * 1024,
  /** Flow-control window of one stream: 64 KiB, the protocol's default, would stall a bulk stream once a round trip. */
  streamWindow: 1024 * 1024,
  /** Flow-control window of a connection: several streams at full speed. */
  connectionWindow: 16 * 1024 * 1024,
  /** Memory of one HTTP/2 session in megabytes (Node's unit), before it refuses streams. */
  sessionMemoryMb: 64,
  /** Header list of one request in bytes, as advertised. */
  headerBytes: 16 * 1024,
  /** One decoded request message; larger ones are RESOURCE_EXHAUSTED. */
  messageBytes: 4 * 1024 * 1024,
  /** Stream resets a second (and burst) of one connection: callers that cancel executions reset streams; an attack resets faster. */
  resetRate: 1_000,
  resetBurst: 10_000,
  /** TCP clients are pinged this often, and given this long to answer. Milliseconds. */
  pingIntervalMs: 20_000,
  pingTimeoutMs: 10_000,
  /** An idle HTTP/1 connection is kept this long. Milliseconds. */
  http1IdleMs: 60_000,
  /** From the first to the last header byte of an HTTP/1 request. Milliseconds. */
  http1HeadersMs: 10_000,
  /** How often that is looked at. Milliseconds. */
  http1CheckMs: 5_000,
  /** Failures that nobody expected, as logged in a while, with their stacks; the rest are counted. Milliseconds. */
  failuresLogged: 20,
  failureWindowMs: 10_000,
  /** Calls under way may finish for this long when the gateway stops. Milliseconds. */
  drainMs: 800,
  /** A store that does not answer a read within this is not ready. Milliseconds. */
  storeProbeMs: 2_000,
  /** How often health watchers look at the store, together. Milliseconds. */
  healthPollMs: 5_000,
  /** Calls that watch the gateway's health, and how many of them may come from connections that proved nothing. */
  healthWatchers: 1_024,
  strangerHealthWatchers: 256,
  /** Reflection streams at once, likewise; each may have one answer, some 100 KiB, under way. */
  reflectionStreams: 64,
  strangerReflectionStreams: 32,
  /** Questions in one reflection stream: a tool asks one for each file or name. */
  reflectionRequests: 1_000,
  /** A reflection stream ends then, in order; tools that keep one open ask again in another. Milliseconds. */
  reflectionStreamMs: 300_000,
  /** Characters of a name that is asked for; ours have at most 100. */
  reflectionNameCharacters: 512,
} as const;

/** Bounds of a policy document and of what compiling it may cost. Each is checked before the work it bounds. */
export const PolicyLimit = {
  /** Largest accepted document, bytes of UTF-8 (the public limit of policy files). */
  documentBytes: 4 * 1024 * 1024,
  /** Nodes reached through aliases; a document of aliases of aliases grows without bound otherwise. */
  aliasedNodes: 10_000,
  /** Deepest nesting of maps and lists; the schema itself needs 9, `config` of a middleware may use the rest. */
  depth: 64,
  /** Violations reported for one document; more than this helps nobody. */
  violations: 200,
  /** read_only and read_write paths together. */
  filesystemPaths: 256,
  /** Bytes of one path. */
  pathBytes: 4096,
  middlewares: 10,
  /** include and exclude patterns of one middleware. */
  middlewarePatterns: 32,
  /** Bytes of one middleware's `config` as JSON. */
  middlewareConfigBytes: 64 * 1024,
  /** Plain globs that one glob with `{a,b}` may stand for. */
  braceAlternatives: 256,
  /** Bytes of one glob or host pattern. */
  patternBytes: 4096,
  /** Pairs of endpoints looked at for contradictions; at 50 ns a pair this is a second. */
  ambiguityPairs: 20_000_000,
  /** Contradictions reported. */
  ambiguities: 20,
} as const;

/** Body limit of graphql, json-rpc and mcp endpoints that set none, bytes. */
export const DEFAULT_L7_BODY_BYTES = 65_536;

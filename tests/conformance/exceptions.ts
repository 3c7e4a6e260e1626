import type { Implementation } from "./implementation.ts";

/** Test cases that are known to fail. One that passes, or that does not exist, fails the tests like any other surprise. */
export interface Exception {
  /** A pattern of case names as the runner knows them: `*` is one part between slashes, `**` any number of them. */
  readonly cases: string;
  readonly reason: string;
}

export const SERVER_EXCEPTIONS: Readonly<Record<Implementation, readonly Exception[]>> = {
  lane: [],
  "connect-node": [],
};

export const CLIENT_EXCEPTIONS: Readonly<Record<Implementation, readonly Exception[]>> = {
  lane: [],
  "connect-node": [
    {
      cases: "gRPC Unexpected Responses/**/server-stream/incomplete-message",
      reason: "connect-node calls a response that ends within a message INVALID_ARGUMENT, where gRPC says INTERNAL",
    },
    {
      cases: "gRPC Unexpected Responses/**/server-stream/incomplete-message-prefix",
      reason: "as incomplete-message, for a response that ends within the five bytes before a message",
    },
  ],
};

/** Cases of h2spec that node:http2 is known to fail: nothing above it sees these frames. `cases` is one case. */
export const H2SPEC_EXCEPTIONS: readonly Exception[] = [
  {
    cases: "http2/5.1/8",
    reason: "nghttp2 ignores frames on a stream that it has forgotten (RFC 9113 §5.1 allows it)",
  },
  { cases: "http2/5.1/9", reason: "as http2/5.1/8, for HEADERS" },
  { cases: "http2/5.1/11", reason: "as http2/5.1/8, when both sides had finished" },
  { cases: "http2/5.1/12", reason: "as http2/5.1/11, for HEADERS" },
  { cases: "http2/5.1.1/2", reason: "a lower stream id counts as one that is closed, so as http2/5.1/12" },
  { cases: "http2/5.3.1/2", reason: "priorities are deprecated (RFC 9113 §5.3.2): nghttp2 does not look at PRIORITY" },
  { cases: "http2/6.3/1", reason: "as http2/5.3.1/2, for stream 0" },
  { cases: "http2/6.7/2", reason: "Node closes a connection that acknowledges a PING nobody sent" },
  { cases: "http2/6.9.1/3", reason: "a stream's window above 2^31-1 ends the whole connection, not the stream alone" },
];

import type { Implementation } from "./implementation.ts";

/** Test cases that are known to fail. One that passes, or that does not exist, fails the tests like any other surprise. */
export interface Exception {
  /** A pattern of case names as the runner knows them: `*` is one part between slashes, `**` any number of them. */
  readonly cases: string;
  readonly reason: string;
}

export const SERVER_EXCEPTIONS: Readonly<Record<Implementation, readonly Exception[]>> = {
  "connect-node": [],
};

export const CLIENT_EXCEPTIONS: Readonly<Record<Implementation, readonly Exception[]>> = {
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

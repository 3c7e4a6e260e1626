import type { DescMethod } from "@bufbuild/protobuf";
import type { ServiceImpl } from "@connectrpc/connect";
import { compatibility, type RpcName, type RpcState } from "./compatibility.ts";
import { type ApiError, unimplemented } from "./errors.ts";
import { OpenShell } from "./generated/openshell_pb.js";

/** Handlers of the public service. */
export type OpenShellImpl = ServiceImpl<typeof OpenShell>;

/**
 * A whole service from the handlers that exist: every other RPC answers UNIMPLEMENTED with its name, whether that is by design, and what to use
 * instead. Authorization must run before handlers, so that an unauthorized caller learns nothing from this.
 */
export function unimplementedRest(handlers: Partial<OpenShellImpl>): OpenShellImpl {
  const missing = OpenShell.methods.filter((method) => handlers[method.localName as RpcName] === undefined);
  const answers = missing.map((method) => [method.localName, refusingHandler(method)] as const);
  return { ...handlers, ...Object.fromEntries(answers) } as OpenShellImpl;
}

/**
 * RPCs whose state in the compatibility table disagrees with the handlers given: `built` without a handler, or a handler of one not `built`. A
 * server's tests hold this empty, so that the published page is true.
 */
export function compatibilityMismatches(handlers: Partial<OpenShellImpl>): readonly RpcName[] {
  const names = Object.keys(compatibility) as RpcName[];
  return names.filter((name) => (compatibility[name].state === "built") !== (handlers[name] !== undefined));
}

/** The UNIMPLEMENTED answer of one RPC. */
export function unimplementedError(rpc: string, state: RpcState): ApiError {
  switch (state.state) {
    case "by-design":
      return unimplemented(`${rpc} is not offered by this gateway, by design`, { next: state.instead });
    case "host-socket":
      return unimplemented(`${rpc} is not offered here`, { next: state.instead });
    case "planned":
      return unimplemented(`${rpc} is not built yet in this gateway`, {
        next: state.instead ?? "See docs/compatibility.md for what is built",
      });
    case "built":
      return unimplemented(`${rpc} is not served here`, { next: "Call it on the gateway's main listener" });
  }
}

/** Throws when called, in the way that each kind of method reports errors. */
function refusingHandler(method: DescMethod): unknown {
  const error = () => unimplementedError(method.name, compatibility[method.localName as RpcName]);
  if (method.methodKind === "unary" || method.methodKind === "client_streaming") return () => Promise.reject(error());
  return () => ({
    [Symbol.asyncIterator]: () => ({ next: () => Promise.reject(error()) }),
  });
}

import type { DescMethod } from "@bufbuild/protobuf";
import { type ConnectRouter, createMethodImplSpec, createServiceImplSpec } from "@connectrpc/connect";

/** A handler with its method. */
export type MethodImplSpec = ReturnType<typeof createMethodImplSpec>;

/** Path of a method in requests. */
function pathOf(method: DescMethod): string {
  return `/${method.parent.typeName}/${method.name}`;
}

/** The handlers that `routes` registers, by path; the same function serves connect-node. */
export function collectRoutes(routes: (router: ConnectRouter) => void): ReadonlyMap<string, MethodImplSpec> {
  const specs = new Map<string, MethodImplSpec>();
  const router: ConnectRouter = {
    handlers: [],
    service(service, implementation) {
      for (const spec of Object.values(createServiceImplSpec(service, implementation).methods)) {
        specs.set(pathOf(spec.method), spec);
      }
      return router;
    },
    rpc(method, implementation) {
      specs.set(pathOf(method), createMethodImplSpec(method, implementation));
      return router;
    },
  };
  routes(router);
  return specs;
}

import { type ConnectRouter, createMethodImplSpec, createServiceImplSpec } from "@connectrpc/connect";

/** A handler with its method. */
export type MethodImplSpec = ReturnType<typeof createMethodImplSpec>;

/** The handlers that `routes` registers, by path; the same function serves connect-node. */
export function collectRoutes(routes: (router: ConnectRouter) => void): ReadonlyMap<string, MethodImplSpec> {
  const specs = new Map<string, MethodImplSpec>();
  const add = (spec: MethodImplSpec) => specs.set(`/${spec.method.parent.typeName}/${spec.method.name}`, spec);
  const router: ConnectRouter = {
    handlers: [],
    service(service, implementation) {
      for (const spec of Object.values(createServiceImplSpec(service, implementation).methods)) add(spec);
      return router;
    },
    rpc(method, implementation) {
      add(createMethodImplSpec(method, implementation));
      return router;
    },
  };
  routes(router);
  return specs;
}

import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { currentBootId } from "@openshell/base";
import { daemonEnvironment } from "@openshell/base/daemon.ts";
import { localDriver } from "@openshell/gateway/api/driver.ts";
import { assembleServices } from "@openshell/gateway/api/services.ts";
import type { CreateServices } from "@openshell/gateway/deps.ts";
import { createHostLauncher } from "@openshell/gateway/hosts/launcher.ts";
import { systemHostProcesses } from "@openshell/gateway/hosts/process.ts";
import { SimulatingDriver } from "./driver.ts";
import { SimulatingLauncher } from "./launcher.ts";
import { SIMULATED, SIMULATED_HOST } from "./names.ts";

/** The gateway's services, with sandboxes that exist in name only beside the real ones. */
export const createServices: CreateServices = async (deps) => {
  const simulated = createHostLauncher({
    store: deps.store,
    clock: deps.clock,
    log: deps.log,
    processes: systemHostProcesses,
    program: join(dirname(fileURLToPath(import.meta.url)), SIMULATED_HOST),
    env: daemonEnvironment(process.env),
    build: deps.build.build,
    placement: "workspace",
    folder: join(deps.paths.runtime, "s"),
    logs: deps.paths.logs,
    gatewaySocket: join(deps.paths.runtime, "host.sock"),
  });
  const isSimulated = async (sandboxId: string): Promise<boolean> =>
    (await deps.store.sandboxes.byId(sandboxId))?.name.startsWith(SIMULATED) ?? false;
  const hosts = new SimulatingLauncher(deps.hosts, simulated, isSimulated);
  const services = assembleServices({ ...deps, hosts }, new SimulatingDriver(await localDriver(deps)), currentBootId());
  return {
    ...services,
    async [Symbol.asyncDispose]() {
      await services[Symbol.asyncDispose]();
      await simulated[Symbol.asyncDispose]();
    },
  };
};

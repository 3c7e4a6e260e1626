import { join } from "node:path";
import { clientConfigRoot } from "@openshell/base";
import { homeFolder } from "@openshell/base/home.ts";
import { nativeFolder } from "@openshell/boundary/local/native.ts";
import type { ComputeDriver } from "@openshell/drivers/driver.ts";
import { parseLocalDriverConfig } from "@openshell/drivers/local/config.ts";
import { openLocalDriver } from "@openshell/drivers/local/driver.ts";
import type { GatewayDeps } from "../deps.ts";

/** The local driver as this gateway is configured. @throws DriverError `capture_unavailable` where no sandbox can be made. */
export async function localDriver(deps: GatewayDeps): Promise<ComputeDriver> {
  const where = { uid: process.getuid?.() ?? 0, env: process.env, home: homeFolder(process.env) };
  return await openLocalDriver({
    paths: deps.paths,
    clientConfigRoot: clientConfigRoot(where),
    config: parseLocalDriverConfig(deps.config.local.table),
    initPath: join(nativeFolder(process.env), "openshell-init"),
    env: process.env,
    clock: deps.clock,
  });
}

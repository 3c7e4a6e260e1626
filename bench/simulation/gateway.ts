import { serve } from "@openshell/gateway/lifecycle/serve.ts";
import packageJson from "../../packages/gateway/package.json" with { type: "json" };
import { createServices } from "./services.ts";

/**
 * `gateway.mjs serve [options]` whose sandboxes can be simulated: the program that people run, with a driver and a launcher
 * of hosts in front of its own (services.ts). Bundled and started by benchmarks only.
 */
const status = await serve({
  args: process.argv.slice(3),
  env: process.env,
  mainUrl: import.meta.url,
  version: packageJson.version,
  services: async () => createServices,
});
process.exit(status);

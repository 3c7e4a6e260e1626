import { enableCompileCache, flushCompileCache } from "node:module";
import packageJson from "../package.json" with { type: "json" };

/** `gateway.mjs serve [options]`: the gateway process. docs/architecture/gateway.md has its contract. */
// Compiled code is kept beside the bundle where that can be written: most of a start is compiling.
if (import.meta.url.endsWith(".mjs")) {
  enableCompileCache(`${import.meta.dirname}/compile-cache`);
  // Soon, since not every gateway ends in an orderly way.
  setTimeout(flushCompileCache, 3000).unref();
}

const [command, ...args] = process.argv.slice(2);

if (command === "--version") {
  process.stdout.write(`${packageJson.version}\n`);
} else if (command !== "serve") {
  process.stderr.write("usage: gateway.mjs serve --name NAME [options]\nPeople use `openshell gateway start`.\n");
  process.exitCode = 2;
} else {
  const { serve } = await import("./lifecycle/serve.ts");
  const status = await serve({
    args,
    env: process.env,
    mainUrl: import.meta.url,
    version: packageJson.version,
    services: async () => (await import("./api/services.ts")).createServices,
  });
  process.exit(status);
}

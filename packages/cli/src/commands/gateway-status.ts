import { runningGateway } from "@openshell/base/gateway-record.ts";
import type { CommandSpec } from "../args.ts";
import { type Context, OUTPUT_FLAG } from "../context.ts";
import { EXIT } from "../errors.ts";
import { type LocalStatus, localStatus } from "../gateway/local-control.ts";
import { NAME_FLAG, ownGateway } from "../model/own-gateway.ts";
import { renderDetails } from "../output/table.ts";
import { RpcError } from "../transport/rpc-error.ts";

export const spec: CommandSpec = {
  path: ["gateway", "status"],
  summary: "say whether it runs, and where its files are",
  flags: [NAME_FLAG, OUTPUT_FLAG],
  about: ["Never starts a gateway. The exit status is 0 also when none runs; use -o json in programs."],
  examples: ["openshell gateway status"],
};

export async function run(context: Context): Promise<number> {
  const { name, paths, endpoint } = ownGateway(context);
  const record = runningGateway(paths);
  let live: LocalStatus | undefined;
  try {
    if (record !== undefined && endpoint.kind === "unix") live = await localStatus(endpoint);
  } catch (error) {
    if (!(error instanceof RpcError)) throw error;
  }
  const state = record === undefined ? "stopped" : live === undefined ? "not answering" : "running";
  const format = context.outputFormat;
  if (format !== "table") {
    const facts = {
      name,
      status: state.replace(" ", "_"),
      pid: record?.pid ?? null,
      version: record?.version ?? null,
      build: record?.build ?? null,
      started_at: record === undefined ? null : new Date(record.startedAt).toISOString(),
      auto_started: record?.autoStarted ?? null,
      endpoint: record?.endpoint ?? null,
      socket: endpoint.kind === "unix" ? endpoint.path : null,
      running_sandboxes: live?.sandboxes ?? null,
      hosts: live?.hosts ?? null,
      config: paths.config,
      state: paths.state,
      logs: paths.logs,
    };
    await context.printStructured(facts, format);
    return EXIT.ok;
  }
  const { out } = context;
  const lines: [string, string][] = [
    ["Gateway", name],
    [
      "Status",
      state === "running"
        ? out.green("Running")
        : state === "stopped"
          ? out.yellow("Stopped")
          : out.red("Not answering"),
    ],
  ];
  if (record !== undefined) {
    lines.push(
      ["Process", `${record.pid}${record.autoStarted ? ", started by a command that needed it" : ""}`],
      ["Version", `${record.version}${record.build === "" ? "" : ` (build ${record.build})`}`],
      ["Endpoint", record.endpoint],
    );
  }
  if (live !== undefined)
    lines.push(["Running sandboxes", String(live.sandboxes)], ["Supervisor hosts", String(live.hosts)]);
  lines.push(["Configuration", paths.config], ["State", paths.state], ["Logs", paths.logs]);
  await context.print(renderDetails("Gateway", lines, out));
  return EXIT.ok;
}

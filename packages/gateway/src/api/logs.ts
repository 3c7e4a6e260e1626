import { create } from "@bufbuild/protobuf";
import { GetSandboxLogsResponseSchema } from "@openshell/api";
import { namedWorkspace } from "@openshell/api/selectors.ts";
import { readTimestamp } from "@openshell/api/times.ts";
import type { OpenShellImpl } from "@openshell/api/unimplemented.ts";
import { LOG_LINES } from "../compute/limits.ts";
import { type ApiDeps, namedSandbox } from "./context.ts";
import { logFilter, passesFilter } from "./log-filter.ts";

/** Recent log lines of a sandbox, oldest first. */
export function logHandlers(deps: ApiDeps): Pick<OpenShellImpl, "getSandboxLogs"> {
  return {
    async getSandboxLogs(request) {
      const record = await namedSandbox(deps, namedWorkspace(request.workspaceScope), request.sandbox);
      const { sources, minLevel } = request;
      const sinceMs = readTimestamp(request.sinceTime, "since_time");
      const filter = logFilter({ sources, minLevel, sinceMs }, { sources: "sources", minLevel: "min_level" });
      const all = deps.feeds.of(record.id).logs;
      const lines = request.lines === 0 ? LOG_LINES : Math.min(request.lines, LOG_LINES);
      const logs = all.map((item) => item.line).filter((line) => passesFilter(line, filter));
      return create(GetSandboxLogsResponseSchema, { logs: logs.slice(-lines), bufferTotal: all.length });
    },
  };
}

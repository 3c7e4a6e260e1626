import { create } from "@bufbuild/protobuf";
import { BeginRootfsTarStagingResponseSchema } from "@openshell/api";
import { namedWorkspace } from "@openshell/api/selectors.ts";
import { toTimestamp } from "@openshell/api/times.ts";
import type { OpenShellImpl } from "@openshell/api/unimplemented.ts";
import { type ApiDeps, activeWorkspace, callerFrom } from "./context.ts";

/** Places for archives that callers on this machine copy to the gateway. */
export function stagingHandlers(deps: ApiDeps): Pick<OpenShellImpl, "beginRootfsTarStaging"> {
  return {
    async beginRootfsTarStaging(request, context) {
      const workspace = namedWorkspace(request.workspaceScope);
      await activeWorkspace(deps, workspace);
      const { subject } = callerFrom(context);
      const { fileName, sizeBytes } = request;
      const slot = await deps.archives.begin({ workspace, subject, fileName, sizeBytes });
      return create(BeginRootfsTarStagingResponseSchema, {
        stagingToken: slot.token,
        uploadPath: slot.path,
        maxBytes: BigInt(slot.maxBytes),
        expirationTime: toTimestamp(slot.expiresAt),
      });
    },
  };
}

import { create } from "@bufbuild/protobuf";
import { GetWorkspaceResponseSchema, ListWorkspacesRequestSchema, ListWorkspacesResponseSchema } from "@openshell/api";
import { parseLabelSelector } from "@openshell/api/labels.ts";
import { decodePageToken, encodePageToken, pageSize } from "@openshell/api/page-token.ts";
import type { OpenShellImpl } from "@openshell/api/unimplemented.ts";
import { type ApiDeps, existingWorkspace } from "./context.ts";
import { objectCursor, workspaceMessage } from "./convert.ts";

/** Reading workspaces. Making further ones is not built. */
export function workspaceHandlers(deps: ApiDeps): Pick<OpenShellImpl, "getWorkspace" | "listWorkspaces"> {
  return {
    async getWorkspace(request) {
      return create(GetWorkspaceResponseSchema, {
        workspace: workspaceMessage(await existingWorkspace(deps, request.name)),
      });
    },

    async listWorkspaces(request) {
      const limit = pageSize(request.pageSize);
      const token = {
        mac: deps.keys.pageTokens,
        method: "ListWorkspaces",
        schema: ListWorkspacesRequestSchema,
        request,
      };
      const after = await decodePageToken(token, request.pageToken, objectCursor.length);
      const rows = await deps.store.workspaces.list({
        labels: Object.fromEntries(parseLabelSelector(request.labelSelector)),
        after: after === undefined ? undefined : objectCursor.decode(after),
        limit: limit + 1,
      });
      const page = rows.slice(0, limit);
      const last = page.at(-1);
      const cursor = last === undefined ? undefined : objectCursor.encode({ ...last, workspace: "" });
      return create(ListWorkspacesResponseSchema, {
        workspaces: page.map(workspaceMessage),
        nextPageToken: rows.length > limit && cursor !== undefined ? await encodePageToken(token, cursor) : "",
      });
    },
  };
}

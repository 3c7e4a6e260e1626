import { create } from "@bufbuild/protobuf";
import {
  GetWorkspaceResponseSchema,
  ListWorkspacesRequestSchema,
  ListWorkspacesResponseSchema,
  WorkspaceSchema,
} from "@openshell/api";
import { invalidField } from "@openshell/api/errors.ts";
import { parseLabelSelector } from "@openshell/api/labels.ts";
import { decodePageToken, pageSize } from "@openshell/api/page-token.ts";
import type { OpenShellImpl } from "@openshell/api/unimplemented.ts";
import type { WorkspaceRecord } from "../store/types.ts";
import { type ApiDeps, existingWorkspace } from "./context.ts";
import { objectCursor, workspaceMessage } from "./convert.ts";
import { pageOf } from "./pages.ts";

/** Reading workspaces. Making further ones is not built. */
export function workspaceHandlers(deps: ApiDeps): Pick<OpenShellImpl, "getWorkspace" | "listWorkspaces"> {
  return {
    async getWorkspace(request) {
      if (request.name === "") throw invalidField("name", "must not be empty");
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
      const cursor = (row: WorkspaceRecord) => objectCursor.encode({ ...row, workspace: "" });
      const page = { rows, limit, token, schema: WorkspaceSchema, message: workspaceMessage, cursor };
      const { items: workspaces, nextPageToken } = await pageOf(page);
      return create(ListWorkspacesResponseSchema, { workspaces, nextPageToken });
    },
  };
}

import { create } from "@bufbuild/protobuf";
import { ListSandboxProvidersRequestSchema, ListSandboxProvidersResponseSchema, ProviderSchema } from "@openshell/api";
import { failedPrecondition } from "@openshell/api/errors.ts";
import { decodePageToken, pageSize } from "@openshell/api/page-token.ts";
import { namedWorkspace } from "@openshell/api/selectors.ts";
import type { OpenShellImpl } from "@openshell/api/unimplemented.ts";
import type { ProviderRecord } from "../store/types.ts";
import { type ApiDeps, namedSandbox } from "./context.ts";
import { providerMessage } from "./convert.ts";
import { pageOf } from "./pages.ts";

/** Providers of a sandbox, by name. */
export function sandboxProviderHandlers(deps: ApiDeps): Pick<OpenShellImpl, "listSandboxProviders"> {
  return {
    async listSandboxProviders(request) {
      const record = await namedSandbox(deps, namedWorkspace(request.workspaceScope), request.sandbox);
      const limit = pageSize(request.pageSize);
      const token = {
        mac: deps.keys.pageTokens,
        method: "ListSandboxProviders",
        schema: ListSandboxProvidersRequestSchema,
        request,
      };
      const after = (await decodePageToken(token, request.pageToken, 1))?.[0] ?? "";
      const names = record.spec.providers.toSorted().filter((name) => after === "" || name > after);
      const rows = await Promise.all(
        names.slice(0, limit + 1).map((name) => deps.store.providers.byName(record.workspace, name)),
      );
      const page = {
        rows: rows.filter((row) => row !== undefined),
        limit,
        token,
        schema: ProviderSchema,
        message: providerMessage,
        cursor: (row: ProviderRecord) => [row.name],
      };
      const { items: providers, nextPageToken } = await pageOf(page);
      return create(ListSandboxProvidersResponseSchema, { providers, nextPageToken });
    },
  };
}

/**
 * The providers of these names. Refuses those that do not exist or would give one environment variable two values. Whoever
 * stores the names stores them with `providers.unchanged` of these records.
 *
 * @throws ApiError FAILED_PRECONDITION.
 */
export async function checkAttachable(
  deps: Pick<ApiDeps, "store">,
  workspace: string,
  names: readonly string[],
): Promise<readonly ProviderRecord[]> {
  const owners = new Map<string, string>();
  const found: ProviderRecord[] = [];
  const rows = await Promise.all(names.map((name) => deps.store.providers.byName(workspace, name)));
  for (const [index, row] of rows.entries()) {
    const name = names[index]!;
    if (row === undefined) {
      throw failedPrecondition(`provider "${name}" does not exist in workspace "${workspace}"`, {
        next: "Create it first",
      });
    }
    claimKeys(owners, row);
    found.push(row);
  }
  return found;
}

/** Notes whose variable each key is. @throws ApiError FAILED_PRECONDITION for a second owner. */
export function claimKeys(
  owners: Map<string, string>,
  provider: Pick<ProviderRecord, "name"> & { credentials: { keys(): Iterable<string> } },
): void {
  for (const key of provider.credentials.keys()) {
    const owner = owners.get(key);
    if (owner !== undefined && owner !== provider.name) {
      throw failedPrecondition(`providers "${owner}" and "${provider.name}" both set ${key}`, {
        next: "Attach one of them only",
      });
    }
    owners.set(key, provider.name);
  }
}

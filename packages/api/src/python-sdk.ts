import { compatibility, type RpcName } from "./compatibility.ts";
import { OpenShell } from "./generated/openshell_pb.js";

/** Release of the official Python package that the tests run, unmodified, against a gateway of this build. */
export const PYTHON_SDK_VERSION = "0.1.5";

/** What a method of the official Python package needs of a gateway. */
export interface SdkMethod {
  /** RPCs that it calls; none when it works on the client alone. */
  readonly rpcs: readonly RpcName[];
  /** What else it needs that is not built. */
  readonly missing?: string;
  /**
   * In place of the usual answer of an RPC that is not built: another status code, or the class of an exception that the
   * package raises by itself, and a part of its text.
   */
  readonly refusal?: readonly [code: string, text: string];
}

const local: SdkMethod = { rpcs: [] };
const calls = (...rpcs: RpcName[]): SdkMethod => ({ rpcs });
const fromTemplate: SdkMethod = {
  rpcs: ["createSandbox", "createSandboxTemplate"],
  refusal: ["UNIMPLEMENTED", "workload_template: sandbox templates are not built yet"],
};

/** Every public method and property of the package's clients, as `Class.name`. */
export const pythonSdk: Readonly<Record<string, SdkMethod>> = {
  "ClientCredentialsAuth.__call__": {
    rpcs: [],
    missing: "sign-in with OIDC",
    refusal: ["SandboxError", "is not configured for OIDC"],
  },

  "Sandbox.__enter__": calls("createSandbox", "getSandbox"),
  "Sandbox.__exit__": calls("deleteSandbox", "getSandbox"),
  "Sandbox.exec": calls("execSandbox"),
  "Sandbox.exec_python": calls("execSandbox"),
  "Sandbox.id": local,
  "Sandbox.sandbox": local,

  "SandboxClient.from_active_cluster": local,
  "SandboxClient.__enter__": local,
  "SandboxClient.__exit__": local,
  "SandboxClient.close": local,
  "SandboxClient.health": calls("health"),
  "SandboxClient.create": calls("createSandbox"),
  "SandboxClient.create_session": calls("createSandbox"),
  "SandboxClient.create_from_template": fromTemplate,
  "SandboxClient.create_session_from_template": fromTemplate,
  "SandboxClient.get": calls("getSandbox"),
  "SandboxClient.get_session": calls("getSandbox"),
  "SandboxClient.list": calls("listSandboxes"),
  "SandboxClient.list_all": calls("listSandboxes"),
  "SandboxClient.list_ids": calls("listSandboxes"),
  "SandboxClient.list_for_all_workspaces": calls("listSandboxes"),
  "SandboxClient.list_all_for_all_workspaces": calls("listSandboxes"),
  "SandboxClient.list_ids_for_all_workspaces": calls("listSandboxes"),
  "SandboxClient.stop": calls("stopSandbox"),
  "SandboxClient.start": calls("startSandbox"),
  "SandboxClient.delete": calls("deleteSandbox"),
  "SandboxClient.wait_ready": calls("getSandbox"),
  "SandboxClient.wait_stopped": calls("getSandbox"),
  "SandboxClient.wait_deleted": calls("getSandbox"),
  "SandboxClient.exec": calls("execSandbox"),
  "SandboxClient.exec_stream": calls("execSandbox"),
  "SandboxClient.exec_python": calls("execSandbox"),
  "SandboxClient.sandbox_templates": local,
  "SandboxClient.providers": local,

  "SandboxSession.id": local,
  "SandboxSession.exec": calls("execSandbox"),
  "SandboxSession.exec_python": calls("execSandbox"),
  "SandboxSession.stop": calls("stopSandbox"),
  "SandboxSession.start": calls("startSandbox"),
  "SandboxSession.delete": calls("deleteSandbox"),

  "SandboxTemplateClient.from_sandbox_client": local,
  "SandboxTemplateClient.create": calls("createSandboxTemplate"),
  "SandboxTemplateClient.get": calls("getSandboxTemplate"),
  "SandboxTemplateClient.list": calls("listSandboxTemplates"),
  "SandboxTemplateClient.list_all": calls("listSandboxTemplates"),
  "SandboxTemplateClient.list_for_all_workspaces": calls("listSandboxTemplates"),
  "SandboxTemplateClient.list_all_for_all_workspaces": calls("listSandboxTemplates"),
  "SandboxTemplateClient.delete": calls("deleteSandboxTemplate"),

  "WorkspaceClient.from_sandbox_client": local,
  "WorkspaceClient.create": calls("createWorkspace"),
  "WorkspaceClient.get": calls("getWorkspace"),
  "WorkspaceClient.list": calls("listWorkspaces"),
  "WorkspaceClient.list_all": calls("listWorkspaces"),
  "WorkspaceClient.delete": calls("deleteWorkspace"),

  "ProviderClient.from_sandbox_client": local,
  "ProviderClient.get_credentials": {
    rpcs: ["getProviderCredentials"],
    refusal: ["PERMISSION_DENIED", "may not call GetProviderCredentials"],
  },

  "Pager.__iter__": local,
  "Pager.__next__": local,
  "Pager.all": local,
};

/** Of a method, whether everything that it needs is built. */
export function sdkMethodWorks(method: SdkMethod): boolean {
  return method.missing === undefined && method.rpcs.every((rpc) => compatibility[rpc].state === "built");
}

/** What a caller of a method that is not built gets: status code or exception, and a part of the text. */
export function sdkRefusal(method: SdkMethod): readonly [code: string, text: string] {
  if (method.refusal !== undefined) return method.refusal;
  const rpc = method.rpcs.find((name) => compatibility[name].state !== "built") ?? method.rpcs[0]!;
  const why = compatibility[rpc].state === "planned" ? "is not built yet" : "is not offered";
  return ["UNIMPLEMENTED", `${OpenShell.method[rpc].name} ${why}`];
}

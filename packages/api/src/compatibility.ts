import type { OpenShell } from "./generated/openshell_pb.js";

/** Local names (`createSandbox`) of the RPCs of the public service. */
export type RpcName = keyof typeof OpenShell.method;

/**
 * What a gateway of this build does with an RPC:
 * - `built`: it answers as documented.
 * - `planned`: it answers UNIMPLEMENTED and will be built.
 * - `host-socket`: it answers on the socket of supervisor hosts, and UNIMPLEMENTED on every listener of users.
 * - `by-design`: it answers UNIMPLEMENTED for good.
 */
export type RpcState =
  | { readonly state: "built" }
  | { readonly state: "planned"; readonly instead?: string }
  | { readonly state: "host-socket"; readonly instead: string }
  | { readonly state: "by-design"; readonly instead: string };

const built: RpcState = { state: "built" };
const planned: RpcState = { state: "planned" };
const until = (instead: string): RpcState => ({ state: "planned", instead });

const supervisorProtocol: RpcState = {
  state: "by-design",
  instead:
    "Gateway and supervisor ship together and speak their own protocol, openshell.supervisor.v1; run the supervisor of this build",
};
const polling: RpcState = {
  state: "host-socket",
  instead: "It is for supervisors of older releases, with a sandbox token on the gateway's host socket",
};
const singleGateway: RpcState = {
  state: "by-design",
  instead: "Gateway replicas of this build do not call each other through the public service",
};

/** The state of every public RPC, in the order of the service: the one source of the compatibility page and of the answers of a gateway. */
export const compatibility: Readonly<Record<RpcName, RpcState>> = {
  health: built,
  getCurrentUser: built,
  getGatewayInfo: built,

  createSandbox: built,
  getSandbox: built,
  listSandboxes: built,
  deleteSandbox: built,
  stopSandbox: built,
  startSandbox: built,
  beginRootfsTarStaging: built,

  createSandboxTemplate: planned,
  getSandboxTemplate: planned,
  listSandboxTemplates: planned,
  deleteSandboxTemplate: planned,

  listSandboxProviders: built,
  attachSandboxProvider: built,
  detachSandboxProvider: built,
  getSandboxProviderStatus: built,

  createSshSession: until("Use ExecSandboxInteractive"),
  revokeSshSession: planned,
  exposeService: planned,
  getService: planned,
  listServices: planned,
  deleteService: planned,
  execSandbox: built,
  execSandboxInteractive: built,
  forwardTcp: planned,

  watchSandbox: built,
  getSandboxLogs: built,

  createProvider: built,
  getProvider: built,
  listProviders: built,
  updateProvider: built,
  deleteProvider: built,
  getProviderCredentials: planned,
  listProviderProfiles: planned,
  getProviderProfile: planned,
  importProviderProfiles: planned,
  updateProviderProfiles: planned,
  lintProviderProfiles: planned,
  deleteProviderProfile: planned,
  getProviderRefreshStatus: planned,
  configureProviderRefresh: planned,
  rotateProviderCredential: until("Send the new value with UpdateProvider"),
  deleteProviderRefresh: planned,

  getSandboxConfig: built,
  getGatewayConfig: built,
  updateConfig: built,
  getSandboxPolicyStatus: built,
  listSandboxPolicies: built,

  getDraftPolicy: planned,
  approveDraftChunk: planned,
  rejectDraftChunk: planned,
  approveAllDraftChunks: planned,
  editDraftChunk: planned,
  undoDraftChunk: planned,
  clearDraftChunks: planned,
  getDraftHistory: planned,

  createWorkspace: until('Use the workspace "default"'),
  getWorkspace: built,
  listWorkspaces: built,
  deleteWorkspace: planned,
  addWorkspaceMember: planned,
  removeWorkspaceMember: planned,
  listWorkspaceMembers: planned,

  issueSandboxToken: supervisorProtocol,
  refreshSandboxToken: supervisorProtocol,
  connectSupervisor: supervisorProtocol,
  relayStream: supervisorProtocol,
  getSandboxProviderEnvironment: polling,
  exchangeProviderSubjectToken: supervisorProtocol,
  reportPolicyStatus: polling,
  reportEndpointStatus: supervisorProtocol,
  reportProviderReadiness: polling,
  reportSandboxConfiguration: polling,
  reportMainProcessExit: supervisorProtocol,
  finalizeMainProcessExit: supervisorProtocol,
  pushSandboxLogs: supervisorProtocol,
  submitPolicyAnalysis: supervisorProtocol,
  peerRelay: singleGateway,
  peerReportProviderReadiness: singleGateway,
  peerReportEndpointStatus: singleGateway,
  peerGetSandboxProviderStatus: singleGateway,
  peerNotifyConfigUpdate: singleGateway,
};

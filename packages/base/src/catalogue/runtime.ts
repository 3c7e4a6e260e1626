import type { Meaning } from "./meaning.ts";

/** Codes of `RuntimeError`: of processes, files, the machine, and the protocol between gateway, hosts and sandboxes. In the order of the alphabet. */
export const RUNTIME_ERRORS = {
  accepted_twice: ["The gateway accepted one session twice.", "Update gateway and hosts to the same version"],
  apply_timeout: [
    "A host did not take up a change in time; what was in force still is.",
    "Nothing: the change is sent again",
  ],
  apply_unavailable: [
    "A change came before any configuration was accepted.",
    "Update gateway and hosts to the same version",
  ],
  boundary_busy: ["Too many requests wait for the sandbox's init.", "Try again with fewer commands at a time"],
  boundary_lost: [
    "The connection to the sandbox's init ended.",
    "Look at the sandbox's phase; start it again when it has stopped",
  ],
  boundary_request_failed: [
    "The kernel refused what init was asked to do; the message names step and error.",
    "Follow the message; the step tells what was missing",
  ],
  boundary_state_too_large: ["The host's state is larger than init keeps.", "Use fewer host names in one sandbox"],
  boundary_terminate_failed: [
    "The sandbox's processes did not end.",
    "Stop it through the gateway, which ends init by its process id",
  ],
  boundary_timeout: [
    "The sandbox's init did not answer in time.",
    "Try again; stop and start the sandbox if it persists",
  ],
  boundary_untrusted: [
    "What answers in the sandbox's place is not the init that was started.",
    "Delete the sandbox; look for a process that interferes with the runtime folder",
  ],
  canaries_unanswered: [
    "The sandbox did not answer what it can reach, so its isolation is not proven.",
    "Start the sandbox again; restart the gateway if that does not help",
  ],
  candidate_mismatch: [
    "A host answered another start-up policy than it was asked about.",
    "Update gateway and hosts to the same version",
  ],
  capture_unavailable: [
    "The machine offers no way to capture a sandbox's connections.",
    "Follow the message: it names what the kernel lacks",
  ],
  command_not_started: [
    "The command could not be started in the sandbox.",
    "Check that it exists inside and may be executed",
  ],
  configuration_deadline: [
    "The policy of a sandbox was not corrected in time, so its start was given up.",
    "Give the sandbox a policy with `openshell policy set`, then start it again",
  ],
  configuration_mismatch: [
    "A configuration came with the provider environment of another one.",
    "Update gateway and hosts to the same version",
  ],
  configuration_rejected: [
    "A host could not take up the first configuration of a sandbox.",
    "Read the sandbox's condition ConfigurationReady, and correct its policy or providers",
  ],
  connection_broken: ["A connection failed while data were on their way.", "Try again"],
  connection_closed: ["The other side closed the connection.", "Try again"],
  credential_placeholder_in_request_body: [
    "The placeholder of a credential stands in a body, where nothing is replaced.",
    "Send the credential in a header, or set request_body_credential_rewrite for the endpoint",
  ],
  delete_failed: ["Something of the sandbox could not be removed.", "Follow the message, then delete it again"],
  empty_command: ["No command was given.", "Name a command to run"],
  folder_unusable: [
    "A folder of the gateway cannot be used.",
    "Check owner, rights and free space of the folder that the message names",
  ],
  gateway_running: ["A gateway of this name runs already.", "Use it, or stop it with `openshell gateway stop`"],
  gateway_stopping: ["The gateway is being stopped.", "Try again when it runs again"],
  generation_conflict: ["The sandbox was started again meanwhile.", "Read its state and try again"],
  generation_mismatch: ["A host speaks for an earlier run of the sandbox.", "Nothing: the host ends by itself"],
  global_policy_missing: [
    "A policy of the gateway is to be in force, and the database does not have it: no sandbox starts under its own instead.",
    "Set it anew with `openshell policy set --global --policy FILE`, or remove it with `openshell policy delete --global`",
  ],
  host_full: [
    "The host process carries as many sandboxes as it may.",
    "Nothing: another host takes the sandbox; raise the limit when it repeats",
  ],
  host_mismatch: ["A host gave another identity than it was started with.", "Restart the gateway"],
  host_pid_mismatch: [
    "A host says it is another process than the one that was started.",
    "Restart the gateway; look for a process that interferes with the runtime folder",
  ],
  host_running: ["The host of this workspace runs already.", "Nothing: the gateway uses that one"],
  host_start_failed: ["The host process could not be started.", "Read the host's log, which the message names"],
  identity_refused: [
    "The agent cannot get the user that was asked for.",
    "Follow the message; leave process.run_as_user out for the default",
  ],
  idle_limit: ["Nothing came for longer than a limit allows.", "Try again; a longer wait needs traffic in between"],
  image_invalid: [
    "The image's archive is damaged, too large, or no image.",
    "Make it anew with `docker save` or `docker export`",
  ],
  image_policy_invalid: ["The policy in the image is not valid.", "Correct the image, or give the sandbox a policy"],
  image_refused: [
    "The caller may not use this folder or archive as a root.",
    "Use the gateway's own socket as its user, or have the folder added to image_roots",
  ],
  image_unavailable: [
    "The image cannot be read, unpacked or mounted.",
    "Follow the message; check that the archive exists and the disk has space",
  ],
  incomplete_acceptance: [
    "The gateway accepted a session without all it needs.",
    "Update gateway and hosts to the same version",
  ],
  incomplete_assignment: [
    "A sandbox was given to a host without all it needs.",
    "Update gateway and hosts to the same version",
  ],
  inspection_ca_invalid: [
    "The certificate authority for inspected connections cannot be used.",
    "Restart the gateway; delete and create the workspace's sandboxes if it persists",
  ],
  internal: [
    "Something failed that should not: a mistake of the program.",
    "Read the log, and report it with the version",
  ],
  invalid_configuration: [
    "The gateway's configuration file is wrong at the place that the message names.",
    "Correct the file, then start the gateway again",
  ],
  invalid_driver_config: [
    "The settings of the compute driver are wrong.",
    "Correct the table of the driver in gateway.toml",
  ],
  invalid_gateway_name: ["The name is no name of a gateway.", "Use lower-case letters, digits and hyphens, at most 63"],
  invalid_host_start: [
    "A host process was started by something else than a gateway.",
    "Start the gateway instead: it starts its hosts",
  ],
  invalid_intent: [
    "The driver was asked for something that no sandbox can be.",
    "Report it with the version: the gateway should have refused it",
  ],
  invalid_message: [
    "A message of the internal protocol breaks its rules.",
    "Update gateway and hosts to the same version",
  ],
  invalid_policy: ["The policy cannot be taken up.", "Correct the policy and set it again"],
  invalid_provider_environment: [
    "The credentials and settings of providers cannot be taken up.",
    "Correct or detach the provider that the message names",
  ],
  invalid_sandbox_id: ["The id is no sandbox's.", "Report it with the version: the gateway should have refused it"],
  invalid_update: [
    "A change came without its identity, its sequence or a component.",
    "Update gateway and hosts to the same version",
  ],
  isolation_below_minimum: [
    "Less isolation is in force than was demanded.",
    "Follow the message, or demand less with --minimum-isolation",
  ],
  isolation_breached: [
    "A probe from inside got through a layer that must hold; the sandbox was not started.",
    "Do not use this machine for sandboxes; report it with the kernel's version",
  ],
  key_unusable: [
    "The key that opens the stored secrets is missing or wrong.",
    "Restore the key file from a backup; stored secrets cannot be read without it",
  ],
  launch_failed: ["The sandbox could not be started.", "Follow the message; `openshell logs NAME` has more"],
  launch_plan_invalid: [
    "The plan for a sandbox cannot be carried out.",
    "Report it with the version: the gateway should have refused it",
  ],
  listen_failed: ["An address cannot be listened on.", "Set another address, or end the program that uses it"],
  lock_unusable: ["A lock file cannot be used.", "Check its rights, and that it is on a local disk"],
  main_process_missing: [
    "The sandbox has no main process to attach to.",
    "Look at the sandbox's phase; start it again when it has ended",
  ],
  middleware_config_refused: [
    "A middleware service does not take the settings that a policy gives it.",
    "Correct config of the policy's entry; the service's log says what is wrong",
  ],
  middleware_manifest_invalid: [
    "A middleware service describes itself in a way that cannot be used.",
    "Update the service, or correct its entry in gateway.toml",
  ],
  middleware_unreachable: [
    "A middleware service that the policy names does not answer.",
    "Start the service, or correct its entry in gateway.toml",
  ],
  middleware_unregistered: [
    "The policy names a middleware service that the gateway does not know.",
    "Register it in gateway.toml, or remove it from the policy",
  ],
  native_addon_missing: [
    "A native part of the program is missing.",
    "Build it with native/build.sh, or install the whole package",
  ],
  network_settings_invalid: [
    "The network settings that the host was given are wrong.",
    "Correct resolvers and networks in gateway.toml",
  ],
  nonce_mismatch: ["A stored secret belongs to another run of the sandbox.", "Stop the sandbox and start it again"],
  not_configured: ["The sandbox has no configuration yet.", "Wait until it is ready"],
  not_started_by_gateway: [
    "The gateway's program was started in a way meant for the command line.",
    "Use `openshell gateway start`",
  ],
  not_wanted: ["A host serves a sandbox that shall not run.", "Nothing: the host ends it"],
  output_held_open: [
    "A command ended, but another process held its output open too long.",
    "Redirect the output of what shall run on: COMMAND >/dev/null 2>&1 &",
  ],
  payload_too_large: [
    "A configuration is larger than can be delivered.",
    "Make the policy or the providers' settings smaller",
  ],
  pki_unreadable: [
    "The gateway's certificates cannot be read.",
    "Check the rights of the file that the message names, or remove it to have new ones made",
  ],
  policy_changed: [
    "A policy was set while a start prepared another one.",
    "Nothing: the start begins with the new one",
  ],
  policy_missing: ["A configuration came without a policy.", "Set a policy for the sandbox"],
  policy_refused: [
    "The policy that was prepared for the start is not allowed.",
    "Correct the policy in the image, or give the sandbox one",
  ],
  protocol_revision: [
    "Gateway and host speak different revisions of their protocol.",
    "Update both to the same version",
  ],
  provider_environment_unavailable: [
    "The credentials of a sandbox could not be put in force; it has none now.",
    "Update the provider, or attach it again",
  ],
  queue_closed: ["What the data were meant for has ended.", "Try again"],
  relay_cancelled: ["The caller of a command left.", "Nothing: the command was ended"],
  relay_closed: [
    "The connection that carried a command ended before its status.",
    "Check what the command did before running it again",
  ],
  relay_start_missing: ["A relay began without saying for what.", "Update gateway and hosts to the same version"],
  resolution_failed: [
    "A host name could not be resolved.",
    "Check the name, and the resolvers of the gateway's machine",
  ],
  response_uninspectable: [
    "An answer to a request with a credential is coded so that it cannot be searched.",
    "Ask for an encoding that can be: identity, gzip, deflate or br",
  ],
  revision_mismatch: ["A host applied another revision than it was sent.", "Nothing: it is sent again"],
  sandbox_closed: ["The sandbox is being closed.", "Try again when it runs again"],
  sandbox_ended: ["The sandbox's processes have ended.", "Start it again with `openshell sandbox start NAME`"],
  sandbox_launch_failed: [
    "The sandbox could not be set up; the message names step and kernel error.",
    "Follow the message; it names what the machine lacks",
  ],
  sandbox_not_found: ["The sandbox, or its files, are not there.", "Delete it and create it again"],
  secret_unreadable: [
    "A stored secret cannot be opened with the gateway's key.",
    "Restore the key it was stored with, or store the secret again",
  ],
  session_closed: ["The session between host and gateway ended.", "Try again"],
  snapshot_timeout: ["A configuration could not be read in time.", "Nothing: it is read again"],
  snapshot_unsettled: ["A configuration changed each time that it was read.", "Nothing: it is read again"],
  socket_path_too_long: [
    "The path of a socket is longer than the kernel takes.",
    "Set XDG_RUNTIME_DIR to a shorter folder",
  ],
  stale_connection: ["A newer connection of the same host exists.", "Nothing: the newer one is used"],
  stale_sequence: ["A change came after a newer one.", "Nothing: the newer one is in force"],
  start_failed: ["The gateway could not be started, for a reason that is not foreseen.", "Read gateway.log"],
  start_interrupted: [
    "The start of a sandbox's main process was cut off; it is repeated a few times by itself.",
    "Start it again if the sandbox says that it failed",
  ],
  state_invalid: ["The state that a host left for its successor is damaged.", "Stop the sandbox and start it again"],
  state_unreadable: [
    "The driver's file about a sandbox cannot be read.",
    "Check its rights; delete the sandbox when it is damaged: its home is beside the file",
  ],
  stdin_overflow: [
    "More input waits for a process than is kept, and it does not read.",
    "Send less input, or a program that reads it",
  ],
  stop_failed: [
    "Processes of the sandbox do not end.",
    "Try again; one that waits for a device or a network file system ends when that answers",
  ],
  store_already_exists: ["The name is taken.", "Choose another name, or delete what has it"],
  store_busy: [
    "Another program, such as a backup, keeps the gateway's database locked. Nothing was stored.",
    "End that program, then try again",
  ],
  store_closed: ["The gateway's database is closed.", "Start the gateway again"],
  store_conflict: ["Somebody changed it at the same time.", "Read it again and repeat the change"],
  store_full: ["The disk with the gateway's database is full. Nothing was stored.", "Free space there"],
  store_limit_reached: ["A limit of the gateway's database is reached.", "Delete what is no longer needed, or wait"],
  store_not_found: ["What was to be changed does not exist.", "Read what there is"],
  store_overloaded: ["More changes wait than the gateway takes. Nothing was done.", "Try again more slowly"],
  store_too_new: ["The database was written by a newer version.", "Start that version, or restore a backup of before"],
  store_unusable: [
    "The gateway's database cannot be opened.",
    "Check rights and free space of the folder that the message names",
  ],
  store_write_failed: [
    "The gateway's database refused a change; nothing of it was stored.",
    "Check the disk, then try again",
  ],
  timeout: ["A host did not answer in time.", "Nothing: it connects again"],
  tls_handshake_failed: [
    "TLS with a host of the internet could not be set up.",
    "Check that the host speaks TLS on that port",
  ],
  token_mismatch: [
    "A host speaks for another sandbox than its token.",
    "Restart the gateway; look for a process that interferes with the runtime folder",
  ],
  too_many_hosts: ["More host processes run than are allowed.", "Stop sandboxes of other workspaces"],
  too_many_relays: ["More commands are attached at a time than are allowed.", "End some of them, or wait"],
  unexpected_candidate: [
    "The gateway asked about a start-up policy out of turn.",
    "Update gateway and hosts to the same version",
  ],
  unexpected_message: [
    "A message of the internal protocol came out of turn.",
    "Update gateway and hosts to the same version",
  ],
  update_before_acceptance: [
    "The gateway sent a change before it accepted the session.",
    "Update gateway and hosts to the same version",
  ],
  upstream_unreachable: [
    "The destination does not answer, or with something that is not valid.",
    "Check that it is up and reachable from the gateway's machine",
  ],
  upstream_untrusted: [
    "The destination's certificate is not trusted.",
    "Correct the certificate, or add its authority to the machine's or the gateway's roots",
  ],
  volume_invalid: [
    "A volume is not written as SOURCE:TARGET[:ro].",
    "Write --volume SOURCE:TARGET[:ro] with absolute paths",
  ],
  volume_refused: [
    "What was to be mounted must not be: it is private, special, or not the caller's to give.",
    "Mount a folder of ordinary files",
  ],
  volume_unavailable: [
    "What was to be mounted does not exist, or its file system cannot be mounted.",
    "Follow the message",
  ],
  working_directory_unusable: [
    "The folder to start in does not exist inside, or may not be entered.",
    "Name another with --workdir",
  ],
} as const satisfies Readonly<Record<string, Meaning>>;

export type RuntimeErrorCode = keyof typeof RUNTIME_ERRORS;

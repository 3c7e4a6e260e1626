import type { Meaning } from "./meaning.ts";

/** Errors that the command line itself makes, without a gateway or beside it. */
export const COMMAND_LINE_ERRORS = {
  answer_incomplete: [
    "The gateway's answer lacks something that it must have.",
    "Compare `openshell status` with `openshell --version`",
  ],
  archive_not_staged: [
    "An archive could not be copied to the gateway's folder for archives.",
    "Run the command on the gateway's machine as its user, or name a path below [local] image_roots",
  ],
  attachment_lost: [
    "The connection to a command was lost for good. The command goes on in its sandbox.",
    "Read its log, or connect again",
  ],
  build_missing: [
    "The gateway's program is not there.",
    "Use the command `openshell` of a checkout or a package, which builds or brings it",
  ],
  certificate_missing: [
    "There are no client certificates for the gateway, or one of its files is none.",
    "Put ca.crt, tls.crt and tls.key where the message says",
  ],
  change_invalid: ["A change of a policy would not be accepted.", "Correct the options that the message names"],
  command_status_unknown: ["A command ended without telling its status.", "Check what it did before running it again"],
  credential_value_invalid: ["A credential's value is not text.", "Give it as UTF-8 text"],
  credential_value_missing: [
    "A credential was named and no value was found for it.",
    "Set the variable, or pipe the value into the command",
  ],
  credential_value_too_large: ["A value is longer than a credential may be.", "Give the credential alone"],
  gateway_start_failed: ["The gateway did not start.", "Read gateway.log, which the message names"],
  gateway_stop_failed: ["The gateway does not end.", "Read its log; end the process that the message names"],
  gateway_unknown: ["No gateway of this name is known here.", "Leave out --gateway for the one of this machine"],
  interrupted: ["A signal ended the command.", "Run it again"],
  login_unsupported: [
    "The gateway asks for a login that this version cannot do.",
    "Use a gateway with client certificates, or the one of this machine",
  ],
  main_process_ended: [
    "The sandbox's main process has ended.",
    "Start it again with `openshell sandbox start NAME`, or read its log",
  ],
  output_undeliverable: ["Output could not be written.", "Check the disk or the program that reads it"],
  policy_file_invalid: [
    "The policy file has problems, each with its place.",
    "Correct it: `openshell policy validate FILE`",
  ],
  policy_file_too_large: ["The policy file is larger than a policy may be.", "Check that it is the right file"],
  policy_file_unreadable: ["The policy file does not exist or cannot be read.", "Check path and rights"],
  policy_not_understood: [
    "The sandbox's policy has content that this version does not know.",
    "Compare `openshell status` with `openshell --version`",
  ],
  program_not_executable: [
    "The program exists in the sandbox and cannot be executed.",
    "Check its rights and its format",
  ],
  program_not_found: [
    "The program does not exist in the sandbox.",
    "Mount it with --volume, or use an image that has it",
  ],
  registration_unreadable: ["A file about a gateway cannot be read.", "Correct or remove it, or check its rights"],
  sandbox_failed: ["The sandbox has failed.", "Read its log: `openshell logs NAME`"],
  sandbox_removed: ["The sandbox is being removed, or was meanwhile.", "Create another one"],
  sandbox_stopped: ["The sandbox is stopped.", "Start it with `openshell sandbox start NAME`"],
  sandboxes_running: ["The gateway was not stopped, since sandboxes run.", "Say --sandboxes keep or --sandboxes stop"],
  service_failed: ["The systemd service could not be made, started or removed.", "Follow the message"],
  usage: ["The command was used wrongly; nothing was done.", "Correct it: `openshell COMMAND --help`"],
  wait_timeout: [
    "What was waited for did not come in time.",
    "Look at the sandbox; set a longer limit if it only takes longer",
  ],
} as const satisfies Readonly<Record<string, Meaning>>;

export type CommandLineCode = keyof typeof COMMAND_LINE_ERRORS;

import type { Clock } from "@openshell/base";
import type { Attributes, OcsfEvent } from "@openshell/ocsf";
import type { ConfigurationProblem } from "./compile.ts";
import type { SettingChange } from "./settings.ts";

/** Digits of a revision in an event: the eight bytes that the API shows as a number. */
const REVISION_DIGITS = 16;

/** What is told of a sandbox's configuration, each once. */
export interface ConfigEvents {
  detected(change: {
    readonly oldRevision: string;
    readonly newRevision: string;
    readonly policyChanged: boolean;
    readonly providerEnvironmentChanged: boolean;
  }): void;
  policyLoaded(policy: { readonly hash: string; readonly globalVersion: number }): void;
  environmentLoaded(environment: { readonly revision: string; readonly variables: number }): void;
  rejected(candidate: {
    readonly revision: string;
    readonly version: number;
    readonly problem: ConfigurationProblem;
    /** The policy before it decides on; otherwise nothing is allowed. */
    readonly previousActive: boolean;
  }): void;
  environmentRejected(environment: { readonly revision: string; readonly problem: ConfigurationProblem }): void;
  /** Another registry is in force; `problem` when it is not whole. */
  middleware(registry: {
    readonly services: readonly string[];
    readonly problem: ConfigurationProblem | undefined;
  }): void;
  /** A service that is in use was lost, or is back. */
  middlewareLink(service: { readonly name: string; readonly problem: ConfigurationProblem | undefined }): void;
  setting(change: SettingChange): void;
}

/** As security events of the class CONFIG. `redact` removes every live secret from texts. */
export function createConfigEvents(
  emit: (event: OcsfEvent) => void,
  clock: Clock,
  redact: (text: string) => string,
): ConfigEvents {
  const tell = (
    state: string,
    severity: "informational" | "high",
    message: string,
    attributes: Attributes = {},
  ): void =>
    emit({
      class: "config",
      time: clock.now(),
      state,
      severity,
      status: severity === "high" ? "failure" : "success",
      message: redact(message),
      attributes,
    });
  return {
    detected: ({ oldRevision, newRevision, policyChanged, providerEnvironmentChanged }) =>
      tell("detected", "informational", "Config change detected", {
        old_revision: short(oldRevision),
        new_revision: short(newRevision),
        policy_changed: policyChanged,
        provider_env_changed: providerEnvironmentChanged,
      }),
    policyLoaded: ({ hash, globalVersion }) =>
      globalVersion === 0
        ? tell("loaded", "informational", "Policy reloaded successfully", { policy_hash: hash })
        : tell("loaded", "informational", "Policy reloaded successfully (global)", {
            policy_hash: hash,
            global_version: globalVersion,
          }),
    environmentLoaded: ({ revision, variables }) =>
      tell("loaded", "informational", "Provider environment refreshed", {
        revision: short(revision),
        env_count: variables,
      }),
    rejected: ({ revision, version, problem, previousActive }) =>
      tell("failed", "high", `Policy was not applied: ${problem.message}`, {
        config_revision: short(revision),
        version,
        code: problem.code,
        previous_policy_active: previousActive,
      }),
    environmentRejected: ({ revision, problem }) =>
      tell(
        "fail_closed",
        "high",
        `Provider environment was not applied, its credentials are revoked: ${problem.message}`,
        {
          revision: short(revision),
          code: problem.code,
        },
      ),
    middleware: ({ services, problem }) =>
      problem === undefined
        ? tell("loaded", "informational", "Middleware services loaded", { services: services.join(",") })
        : tell("degraded", "high", `Middleware services are not complete: ${problem.message}`, {
            services: services.join(","),
            code: problem.code,
          }),
    middlewareLink: ({ name, problem }) =>
      problem === undefined
        ? tell("loaded", "informational", "Middleware service is back", { service: name })
        : tell("degraded", "high", `Middleware service lost: ${problem.message}`, {
            service: name,
            code: problem.code,
          }),
    setting: ({ message, attributes }) => tell("configured", "informational", message, attributes),
  };
}

function short(revision: string): string {
  return revision.slice(0, REVISION_DIGITS);
}

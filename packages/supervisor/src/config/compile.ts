import type {
  ProviderEnvironment,
  SandboxConfig,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import type { RuntimeErrorCode } from "@openshell/base/catalogue/runtime.ts";
import type { CompiledPolicy } from "@openshell/policy";
import type { CredentialSource } from "../egress/credential-source.ts";
import type { MiddlewareRegistry } from "../middleware/registry.ts";

/** What a provider environment gives: credentials for requests, and what new processes see of them. */
export interface InstalledEnvironment {
  readonly credentials: CredentialSource;
  /** Variable → placeholder or non-secret value. */
  readonly childEnvironment: Readonly<Record<string, string>>;
}

/** Both components, compiled together: what decides from now on, and what new processes see. */
export interface CompiledConfiguration extends InstalledEnvironment {
  readonly policy: CompiledPolicy;
  readonly middleware: MiddlewareRegistry;
}

/** Why a component cannot be put in force; without secrets. */
export interface ConfigurationProblem {
  readonly code: RuntimeErrorCode;
  readonly message: string;
  readonly next: string;
}

export type PolicyResult =
  | { readonly ok: true; readonly policy: CompiledPolicy }
  | { readonly ok: false; readonly problem: ConfigurationProblem };

/** Turns delivered components into what decides. Bad input is a result, never an exception. */
export interface ConfigurationCompiler {
  /** Nothing of it is active before it is published. */
  policy(config: SandboxConfig): Promise<PolicyResult>;
  /** Why an environment cannot be installed; undefined when it can. */
  check(environment: ProviderEnvironment): ConfigurationProblem | undefined;
  /** The sandbox's credentials from the next publication on; only after `check` found nothing. Equal revisions give the same object. */
  install(environment: ProviderEnvironment): InstalledEnvironment;
  /** Takes every credential away; placeholders resolve to nothing until the next `install`. */
  revoke(): InstalledEnvironment;
}

import type {
  ProviderEnvironment,
  SandboxConfig,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import type { RuntimeErrorCode } from "@openshell/base/catalogue/runtime.ts";
import type { CompiledPolicy } from "@openshell/policy";
import type { CredentialSource } from "../egress/credential-source.ts";

/** Both components, compiled together: what decides from now on, and what new processes see. */
export interface CompiledConfiguration {
  readonly policy: CompiledPolicy;
  readonly credentials: CredentialSource;
  /** Variable → placeholder or non-secret value. */
  readonly childEnvironment: Readonly<Record<string, string>>;
}

export type CompileResult =
  | { readonly ok: true; readonly configuration: CompiledConfiguration }
  | { readonly ok: false; readonly code: RuntimeErrorCode; readonly message: string; readonly next: string };

/** Compiles a delivered pair. Never throws for bad input: what cannot be enforced is a result, and nothing of it is active. */
export type ConfigurationCompiler = (config: SandboxConfig, environment: ProviderEnvironment) => Promise<CompileResult>;

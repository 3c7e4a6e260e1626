import { TestGateway } from "./api.ts";
import type { TestInternet } from "./internet/index.ts";
import { PollingHosts } from "./polling/hosts.ts";

/**
 * Where supervisors are and how configuration reaches them: pushed to one host for a workspace, pushed to one host for
 * each sandbox, or asked for by supervisors of an older revision of the protocol.
 */
export const VARIANTS = ["workspace", "sandbox", "revision 0", "revision 1"] as const;
export type Variant = (typeof VARIANTS)[number];

/** Between two looks of a supervisor that polls, where nothing else is said. Milliseconds. */
const LOOK_MS = 500;

export interface VariantOptions {
  /** Keys of `[openshell.gateway]`, TOML. */
  readonly keys?: string;
  /** Between two looks of a supervisor that polls. Milliseconds. */
  readonly lookMs?: number;
}

/** A gateway whose supervisors are of one kind. */
export class VariantGateway implements AsyncDisposable {
  readonly gateway: TestGateway;
  /** The hosts where they poll. */
  readonly polling: PollingHosts | undefined;

  private constructor(gateway: TestGateway, polling: PollingHosts | undefined) {
    this.gateway = gateway;
    this.polling = polling;
  }

  static async start(
    net: TestInternet,
    variant: Variant,
    { keys = "", lookMs = LOOK_MS }: VariantOptions = {},
  ): Promise<VariantGateway> {
    const placement = variant === "sandbox" ? "sandbox" : "workspace";
    const extra = `[openshell.gateway]\n${keys}\n[openshell.supervisor]\nplacement = "${placement}"\n`;
    const gateway = { extra };
    if (variant === "workspace" || variant === "sandbox")
      return new VariantGateway(await TestGateway.start(net, { gateway }), undefined);
    const revision = variant === "revision 0" ? 0 : 1;
    const polling = await PollingHosts.start({ revision, intervalMs: lookMs });
    try {
      const started = await TestGateway.start(net, { gateway, env: polling.env });
      polling.serve(started.folders.hostSocket);
      return new VariantGateway(started, polling);
    } catch (error) {
      await polling[Symbol.asyncDispose]();
      throw error;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.gateway[Symbol.asyncDispose]();
    await this.polling?.[Symbol.asyncDispose]();
    const { problems = [] } = this.polling ?? {};
    if (problems.length > 0) throw new Error(`supervisors that poll: ${problems.join("; ")}`);
  }
}

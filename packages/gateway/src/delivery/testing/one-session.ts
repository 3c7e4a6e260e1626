import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  type ComponentResultSchema,
  ConfigApplyOutcome,
  ConfigComponent,
  type ConfigUpdate,
  ConfigUpdateResultSchema,
  MainProcessSchema,
  ProviderEnvironmentSchema,
  type SandboxConfig,
  SandboxConfigSchema,
} from "@openshell/api/generated/openshell/supervisor/v1/supervisor_pb.js";
import { FrozenClock } from "../../api/testing/frozen-clock.ts";
import { type DeliveryOutcome, SessionDelivery } from "../delivery.ts";
import { DeliveryScheduler, type SchedulerDeps } from "../scheduler.ts";
import type { Snapshot } from "../snapshot.ts";

/** Everything that is about to happen has happened. */
export const settle = async (): Promise<void> => {
  for (let turn = 0; turn < 3; turn++) await new Promise((resolve) => setImmediate(resolve));
};

/** Lets go of everything that nobody holds any more. */
export function collectGarbage(): void {
  setFlagsFromString("--expose-gc");
  (runInNewContext("gc") as () => void)();
}

/** What is stored of one sandbox; its revisions are made of it. */
export interface Stored {
  readonly version: number;
  readonly providers: string;
  readonly epoch: string;
  /** Bytes of the policy beside. */
  readonly padding?: number;
}

export const START: Stored = { version: 1, providers: "p1", epoch: "e1" };

export function configOf({ version, providers, epoch, padding = 0 }: Stored): SandboxConfig {
  return create(SandboxConfigSchema, {
    configRevision: `c${version}/${providers}/${epoch}`,
    policyVersion: version,
    policyHash: `h${version}`,
    providerRevision: providers,
    attachmentEpoch: epoch,
    policySource: "sandbox",
    settings: padding === 0 ? {} : { padding: "x".repeat(padding) },
  });
}

export function snapshotOf(stored: Stored, onOpen: () => void = () => {}): Snapshot {
  const config = configOf(stored);
  const { providerRevision, attachmentEpoch } = config;
  return {
    config,
    providerRevision,
    workspace: "default",
    providers: [stored.providers],
    settingsRevision: 0n,
    settings: { revision: 0n, entries: [] },
    environment: () => {
      onOpen();
      return create(ProviderEnvironmentSchema, { providerRevision, attachmentEpoch });
    },
  };
}

/** One session of a scheduler, with the far end in a test's hands. */
export class OneSession {
  stored: Stored = START;
  readonly sent: ConfigUpdate[] = [];
  readonly outcomes: DeliveryOutcome[] = [];
  /** Outcomes that were stored together, each time. */
  readonly moments: number[] = [];
  readonly errors: unknown[] = [];
  opened = 0;
  builds = 0;
  failed: unknown;
  buildError: Error | undefined;
  openError: Error | undefined;
  record: (outcome: DeliveryOutcome) => Promise<void> = async (outcome) => void this.outcomes.push(outcome);
  readonly delivery: SessionDelivery;

  constructor(
    given: { readonly clock: FrozenClock; readonly scheduler: DeliveryScheduler },
    id = "s",
    publications = given.scheduler.publications,
  ) {
    const { config, environment, ...rest } = snapshotOf(START);
    const bootstrap = { config, environment: environment(), mainProcess: create(MainProcessSchema), ...rest };
    this.delivery = new SessionDelivery(id, bootstrap, {
      clock: given.clock,
      record: async (outcomes) => {
        this.moments.push(outcomes.length);
        for (const outcome of outcomes) await this.record(outcome);
      },
      send: (message) => {
        if (message.case === "update") this.sent.push(message.value);
        return true;
      },
      fail: (error) => {
        this.failed = error;
      },
      onError: (error) => void this.errors.push(error),
      request: given.scheduler.request,
      limitAnswer: given.scheduler.limitAnswer,
    });
    given.scheduler.register(this.delivery, publications);
  }

  async build(): Promise<Snapshot> {
    this.builds += 1;
    if (this.buildError !== undefined) throw this.buildError;
    return snapshotOf(this.stored, () => {
      this.opened += 1;
      if (this.openError !== undefined) throw this.openError;
    });
  }

  /** What was sent, as `config 2` or `environment p2`. */
  get story(): string[] {
    return this.sent.map(({ component }) =>
      component.case === "sandboxConfig"
        ? `config ${component.value.policyVersion}`
        : component.case === "providerEnvironment"
          ? `environment ${component.value.providerRevision}`
          : "nothing",
    );
  }

  async change(next: Partial<Stored>): Promise<void> {
    this.stored = { ...this.stored, ...next };
    this.delivery.markDirty();
    await settle();
  }

  /** Answers an update; `applied` when it is not the revision that was sent. `counterpart`: of the other half, which waited. */
  async answer(
    update: ConfigUpdate | undefined,
    outcome: ConfigApplyOutcome,
    applied?: string,
    failure?: { readonly code: string; readonly message: string },
    counterpart?: MessageInitShape<typeof ComponentResultSchema>,
  ): Promise<void> {
    const { component, updateId, sequence } = update!;
    const own =
      component.case === "sandboxConfig"
        ? component.value.configRevision
        : component.case === "providerEnvironment"
          ? component.value.providerRevision
          : "";
    const none =
      outcome === ConfigApplyOutcome.AWAITING_COMPONENT ||
      outcome === ConfigApplyOutcome.FAILED_CLOSED ||
      outcome === ConfigApplyOutcome.RETAINED_LOCAL_OVERRIDE;
    await this.delivery.result(
      create(ConfigUpdateResultSchema, {
        updateId,
        sequence,
        component:
          component.case === "sandboxConfig" ? ConfigComponent.SANDBOX_CONFIG : ConfigComponent.PROVIDER_ENVIRONMENT,
        result: {
          outcome,
          appliedRevision: applied ?? (none ? "" : own),
          ...(failure === undefined ? {} : { failure }),
        },
        ...(counterpart === undefined ? {} : { counterpart }),
      }),
    );
    await settle();
  }
}

/** A scheduler whose sessions' snapshots come from the sessions themselves. */
export function openScheduler(changes: Partial<SchedulerDeps> = {}): {
  readonly clock: FrozenClock;
  readonly scheduler: DeliveryScheduler;
  readonly sessions: Map<string, OneSession>;
} {
  const clock = new FrozenClock();
  const sessions = new Map<string, OneSession>();
  const scheduler = new DeliveryScheduler({
    clock,
    random: () => 0,
    build: async (id) => await sessions.get(id)!.build(),
    ...changes,
  });
  return { clock, scheduler, sessions };
}

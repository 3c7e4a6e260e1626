import { realpathSync } from "node:fs";
import { chown, rm } from "node:fs/promises";
import { join } from "node:path";
import { type Clock, describeError, ensureFolder, type GatewayPaths, RuntimeError, systemClock } from "@openshell/base";
import { launchSandbox } from "@openshell/boundary/local/launch.ts";
import {
  type ComputeDriver,
  type DeleteResult,
  type DriverCapabilities,
  DriverError,
  type DriverEvent,
  type DriverSandbox,
  type OnProgress,
  type PlantedFiles,
  type SandboxIntent,
  type StartedSandbox,
} from "../driver.ts";
import { TrustCache, writeTrustFiles } from "./ca-bundle.ts";
import {
  type CgroupPlaces,
  cgroupMembers,
  existingCgroups,
  makeCgroups,
  ownCgroups,
  probeLimits,
  removeCgroups,
  type SandboxCgroups,
  usableCgroups,
} from "./cgroups.ts";
import type { LocalDriverConfig } from "./config.ts";
import {
  type DiskLimit,
  type DiskQuota,
  diskLayers,
  limitDisk,
  openDiskQuota,
  type QuotaProgram,
  quotaProgram,
  releaseQuota,
} from "./disk-quota.ts";
import { DiskWatch, type Measure } from "./disk-watch.ts";
import { endProcesses, thaw } from "./end.ts";
import { hostFiles } from "./host-files.ts";
import { type IdentityMode, type ResolvedIdentity, resolveIdentity } from "./identity.ts";
import type { ImageFacts } from "./image/facts.ts";
import { ImageLimit } from "./image/limits.ts";
import { imageLayer, imagesFolder, prepareImage, prepareLayers, usedImages } from "./image/roots.ts";
import { checkImageSource } from "./image/source.ts";
import { ImageStore } from "./image/store.ts";
import { type Unpack, unpackInThread } from "./image/thread.ts";
import {
  type CaptureChoice,
  captureLayer,
  controlSocketPath,
  demandedMode,
  type Launch,
  planLaunch,
  probeCapture,
  shortId,
} from "./launch.ts";
import { launchFailed } from "./launch-error.ts";
import { LimitWatch } from "./limit-watch.ts";
import { isAlive, type ProcessTable, recordOf, systemProcessTable } from "./process-table.ts";
import {
  checkId,
  ownFolders,
  privateFolders,
  type ResolveContext,
  type ResolvedIntent,
  resolveIntent,
  rootSteps,
  workloadLayout,
} from "./resolve.ts";
import { type LaunchRecord, makeFolder, nonceHash, SandboxFolders } from "./state.ts";
import { findPlanted, reachableSockets } from "./volumes/planted.ts";
import { RedirectWatch } from "./volumes/redirect-watch.ts";
import { NO_VOLUMES, VolumeCare } from "./volumes/volume-care.ts";
import { InitWatch } from "./watch.ts";

export const DRIVER_VERSION = "0.1.0";

/** What the local driver needs of its gateway. */
export interface LocalDriverOptions {
  readonly paths: GatewayPaths;
  /** Folder of clients' discovery files; never mounted into a sandbox. */
  readonly clientConfigRoot: string;
  readonly config: LocalDriverConfig;
  /** `dist/native/openshell-init`. */
  readonly initPath: string;
  /** PATH and OPENSHELL_CAPTURE are read. */
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly clock?: Clock;
  readonly processes?: ProcessTable;
  readonly cgroups?: CgroupPlaces;
  readonly launch?: Launch;
  readonly unpack?: Unpack;
  readonly measure?: Measure;
  readonly quotaProgram?: QuotaProgram;
}

/**
 * Opens the driver: prepares its folders, finishes interrupted removals and finds the capture mode by trying (about 10 ms).
 * Throws `capture_unavailable` when no sandbox can be made here, with the kernel's reason.
 */
export async function openLocalDriver(options: LocalDriverOptions): Promise<ComputeDriver> {
  const { paths, config, env } = options;
  const clock = options.clock ?? systemClock;
  const processes = options.processes ?? systemProcessTable();
  const launch: Launch =
    options.launch ?? ((plan, title) => launchSandbox(plan, { initPath: options.initPath, title }));
  const uid = process.getuid!();
  const mode: IdentityMode =
    uid === 0
      ? { kind: "root", firstId: config.id_range_start, blocks: config.id_range_blocks }
      : { kind: "user", uid, gid: process.getgid!() };
  const sandboxes = join(paths.state, "sandboxes");
  for (const folder of [sandboxes, join(paths.runtime, "s")]) await ensureFolder(folder);
  // The launcher follows no link below a volume's or home's path.
  const folders = new SandboxFolders(realpathSync(sandboxes));
  await folders.emptyTrash();
  await folders.dropLost(clock.now());
  const images = new ImageStore({
    folder: realpathSync(await imagesFolder(paths.state)),
    owners: mode.kind === "root" ? "archive" : "own",
    limits: { ...ImageLimit, bytes: config.rootfs_tar_max_bytes },
    keepMs: config.image_keep_seconds * 1_000,
    clock,
    unpack: options.unpack ?? unpackInThread,
    bootId: processes.bootId,
    used: () => usedImages(folders),
  });
  await images.open();
  const capture = await probeCapture(launch, {
    runtimeFolder: paths.runtime,
    identity: resolveIdentity({ runAsUser: "", runAsGroup: "" }, mode, 0),
    demanded: demandedMode(env.OPENSHELL_CAPTURE),
    end: (pid) => {
      const record = recordOf(processes, pid);
      return record === undefined ? Promise.resolve() : endProcesses(processes, [record], clock);
    },
  });
  const cgroups = options.cgroups ?? usableCgroups(ownCgroups());
  // Only root may set limits for projects.
  const quota =
    mode.kind === "root"
      ? await openDiskQuota(folders.root, options.quotaProgram ?? quotaProgram(options.initPath))
      : undefined;
  const limits = await probeLimits(`openshell-probe-${shortId(paths.state)}`, cgroups, clock);
  return new LocalDriver(options, {
    clock,
    processes,
    launch,
    mode,
    folders,
    images,
    capture,
    cgroups,
    limits,
    quota,
  });
}

interface Resources {
  readonly clock: Clock;
  readonly processes: ProcessTable;
  readonly launch: Launch;
  readonly mode: IdentityMode;
  readonly folders: SandboxFolders;
  readonly images: ImageStore;
  readonly capture: CaptureChoice;
  readonly cgroups: CgroupPlaces;
  /** Of the file system that holds the sandboxes' files, where limits of projects are in force there. */
  readonly quota: DiskQuota | undefined;
  /** Limits that can be set here. */
  readonly limits: { readonly cpu: boolean; readonly memory: boolean };
}

/** Where a sandbox's processes and kernel objects are to be found. */
type Traces = Pick<LaunchRecord, "sandboxId" | "title" | "controlFolder" | "cgroups" | "volumes">;

/** Runs sandboxes on the gateway's own machine through `openshell-init`. State lives in files and processes, not in this object. */
class LocalDriver implements ComputeDriver {
  readonly name = "local";
  readonly capabilities: DriverCapabilities;
  readonly #options: LocalDriverOptions;
  readonly #with: Resources;
  readonly #watch: InitWatch;
  readonly #disk: DiskWatch;
  readonly #limits: LimitWatch;
  readonly #trust = new TrustCache();
  readonly #volumes = new VolumeCare();
  readonly #redirects: RedirectWatch;

  constructor(options: LocalDriverOptions, resources: Resources) {
    this.#options = options;
    this.#with = resources;
    this.#watch = new InitWatch(resources.processes, resources.clock);
    const limitBytes = options.config.sandbox_disk_limit;
    this.#disk = new DiskWatch({
      clock: resources.clock,
      limitBytes,
      onExceeded: ({ sandboxId, generation }, usedBytes) =>
        this.#watch.report({ kind: "disk_limit", sandboxId, generation, usedBytes, limitBytes }),
      ...(options.measure === undefined ? {} : { measure: options.measure }),
    });
    this.#limits = new LimitWatch(resources.clock, ({ sandboxId, generation }, limit, times) =>
      this.#watch.report({ kind: "limit", sandboxId, generation, limit, times }),
    );
    this.#redirects = new RedirectWatch(({ sandboxId, generation }, path) =>
      this.#watch.report({ kind: "volume_redirect", sandboxId, generation, path }),
    );
    this.capabilities = {
      driverName: this.name,
      driverVersion: DRIVER_VERSION,
      cpuLimit: resources.limits.cpu,
      memoryLimit: resources.limits.memory,
      gpu: false,
      captureMode: resources.capture.mode,
      identityMode: resources.mode.kind,
      archiveBytes: options.config.rootfs_tar_max_bytes,
    };
  }

  async validate(intent: SandboxIntent): Promise<void> {
    this.#checkImage(intent);
    this.#resolve(intent);
  }

  async create(intent: SandboxIntent, onProgress: OnProgress = async () => true): Promise<StartedSandbox> {
    const kind = this.#checkImage(intent);
    this.#resolve(intent);
    try {
      await makeFolder(this.#with.folders.of(intent.sandboxId), 0o700);
      const { folders, images } = this.#with;
      return await this.#run(intent, await prepareImage(intent, kind, folders, images, onProgress));
    } catch (error) {
      throw launchFailed(error, intent);
    }
  }

  async start(intent: SandboxIntent): Promise<StartedSandbox> {
    this.#resolve(intent);
    const { folders, images } = this.#with;
    if (!(await folders.exists(intent.sandboxId))) throw notFound(intent.sandboxId);
    try {
      return await this.#run(intent, await prepareImage(intent, undefined, folders, images, async () => true));
    } catch (error) {
      throw launchFailed(error, intent);
    }
  }

  async stop(sandboxId: string): Promise<void> {
    checkId(sandboxId);
    await this.#end(await this.#traces(sandboxId));
  }

  async delete(sandboxId: string): Promise<DeleteResult> {
    checkId(sandboxId);
    const { folders } = this.#with;
    const existed = await folders.exists(sandboxId);
    try {
      await this.#end(await this.#traces(sandboxId));
      await rm(this.#controlFolder(sandboxId), { recursive: true, force: true });
      const image = await folders.readImage(sandboxId).catch(() => undefined);
      const project = await folders.readQuota(sandboxId).catch(() => undefined);
      await folders.remove(sandboxId);
      await releaseQuota(project, this.#with.quota);
      if (image?.kind === "archive") await this.#with.images.sweep();
    } catch (error) {
      if (error instanceof RuntimeError) throw error;
      throw new DriverError("delete_failed", `sandbox ${sandboxId} could not be removed: ${describeError(error)}`, {
        retryable: true,
        cause: error,
      });
    }
    return { existed };
  }

  async setAside(sandboxId: string): Promise<string | undefined> {
    checkId(sandboxId);
    try {
      await this.#end(await this.#traces(sandboxId));
      await rm(this.#controlFolder(sandboxId), { recursive: true, force: true });
      return await this.#with.folders.setAside(sandboxId, this.#with.clock.now());
    } catch (error) {
      if (error instanceof RuntimeError) throw error;
      throw new DriverError("delete_failed", `sandbox ${sandboxId} could not be set aside: ${describeError(error)}`, {
        retryable: true,
        cause: error,
      });
    }
  }

  async inspect(sandboxId: string): Promise<DriverSandbox | undefined> {
    checkId(sandboxId);
    const launched = await this.#with.folders.readLaunch(sandboxId);
    return launched === undefined ? undefined : await this.#describe(launched);
  }

  async list(): Promise<readonly DriverSandbox[]> {
    const found: DriverSandbox[] = [];
    for (const id of await this.#with.folders.ids()) {
      const launched = await this.#with.folders.readLaunch(id).catch(() => undefined);
      if (launched === undefined)
        found.push({ sandboxId: id, generation: 0n, name: "", workspace: "", running: undefined });
      else {
        const { generation, name, workspace } = launched;
        const unknown = { sandboxId: id, generation, name, workspace, running: undefined };
        found.push(await this.#describe(launched).catch(unlessUnreadable(unknown)));
      }
    }
    return found;
  }

  async plantedFiles(sandboxId: string): Promise<PlantedFiles> {
    checkId(sandboxId);
    const launched = await this.#with.folders.readLaunch(sandboxId).catch(() => undefined);
    const { writable, folders, covered, sinceMs } = launched?.volumes ?? NO_VOLUMES;
    const sockets = folders.length === 0 ? [] : reachableSockets(folders, covered, hostFiles.sockets());
    const found = writable.length === 0 ? { files: [], more: 0, complete: true } : await findPlanted(writable, sinceMs);
    return { ...found, files: [...sockets, ...found.files] };
  }

  watch(signal: AbortSignal): AsyncIterable<DriverEvent> {
    return this.#watch.events(signal);
  }

  /** Sandboxes live on; only watching ends. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#redirects[Symbol.dispose]();
    await this.#limits[Symbol.asyncDispose]();
    await this.#watch[Symbol.asyncDispose]();
    await this.#disk[Symbol.asyncDispose]();
    await this.#with.images[Symbol.asyncDispose]();
  }

  #context(): ResolveContext {
    const { paths, clientConfigRoot, config } = this.#options;
    const gatewayUid = process.getuid!();
    return { paths, clientConfigRoot, config, mode: this.#with.mode, gatewayUid, trust: this.#trust };
  }

  #resolve(intent: SandboxIntent, image?: ImageFacts, deep = false): ResolvedIntent {
    return resolveIntent(intent, this.#context(), image, deep);
  }

  /** Whether the caller may use the image; what it is. Asked once, at creation. */
  #checkImage({ caller, root }: SandboxIntent): "folder" | "archive" | undefined {
    if (root.kind === "host") return undefined;
    // In the gateway's own folder, where it was checked when the sandbox took it.
    if (root.kind === "staged") return "archive";
    const context = this.#context();
    const { gatewayUid, config } = context;
    const rules = { caller, gatewayUid, imageRoots: config.image_roots, privateFolders: privateFolders(context) };
    return checkImageSource(root.source, rules);
  }

  async #run(intent: SandboxIntent, image: ImageFacts | undefined): Promise<StartedSandbox> {
    const resolved = this.#resolve(intent, image, true);
    const { folders } = this.#with;
    const before = await folders.readLaunch(intent.sandboxId);
    if (before !== undefined) {
      if (before.generation > intent.generation) {
        throw new DriverError(
          "generation_conflict",
          `sandbox ${intent.sandboxId} is at generation ${before.generation}, not ${intent.generation}`,
        );
      }
      const running = (await this.#describe(before)).running;
      if (running?.generation === intent.generation && before.nonceHash === nonceHash(intent.nonce)) return running;
      await this.#end(before);
    }
    const controlFolder = this.#controlFolder(intent.sandboxId);
    await ensureFolder(controlFolder);
    const disk = await this.#limitDisk(intent.sandboxId, resolved.identity);
    await this.#prepareFolder(folders.home(intent.sandboxId), resolved.identity);
    await this.#prepareOwnFolders(intent.sandboxId, resolved);
    await prepareLayers(intent.sandboxId, resolved, folders, this.#with.mode.kind);
    const trustFolder = folders.trust(intent.sandboxId);
    await makeFolder(trustFolder, 0o755);
    await writeTrustFiles(trustFolder, resolved.trust);
    const cgroups = this.#makeCgroups(intent, resolved);
    const { record: volumes, steps } = this.#volumes.prepare(
      intent.sandboxId,
      resolved.volumes,
      intent.volumes,
      before?.volumes,
    );
    const record: LaunchRecord = {
      sandboxId: intent.sandboxId,
      name: intent.name,
      workspace: intent.workspace,
      generation: intent.generation,
      nonceHash: nonceHash(intent.nonce),
      title: this.#title(intent.sandboxId),
      controlFolder,
      cgroups: cgroups.folders,
      volumes,
      request: {
        hostname: intent.hostname,
        process: intent.process,
        volumes: intent.volumes,
        root: intent.root,
        idBlock: intent.idBlock,
      },
    };
    await folders.writeLaunch(record);
    try {
      const guarded = { ...resolved, volumes: { ...resolved.volumes, steps } };
      const started = await this.#launch(intent, guarded, record, cgroups, disk);
      await folders.writeStarted(started);
      this.#follow(started, record);
      return started;
    } catch (error) {
      await this.#end(record);
      throw error;
    }
  }

  async #launch(
    intent: SandboxIntent,
    resolved: ResolvedIntent,
    record: LaunchRecord,
    cgroups: SandboxCgroups,
    disk: DiskLimit,
  ): Promise<StartedSandbox> {
    const { folders, processes, capture, launch } = this.#with;
    const { pid, startTicks, netnsCookie } = await launch(
      planLaunch({
        intent,
        controlFolder: record.controlFolder,
        identity: resolved.identity,
        cgroups,
        root: rootSteps(intent, resolved, folders, this.#options.config),
        mode: capture.mode,
      }),
      record.title,
    );
    // The launcher's word, not what the pid names by now.
    const process = { bootId: processes.bootId, pid, startTime: startTicks };
    if (!isAlive(processes, process)) throw new DriverError("launch_failed", "init ended at once", { retryable: true });
    return {
      sandboxId: intent.sandboxId,
      generation: intent.generation,
      record: process,
      boundary: { kind: "local", socketPath: controlSocketPath(record.controlFolder), netnsCookie },
      layout: workloadLayout(resolved, this.#options.env.PATH ?? ""),
      isolation: [
        resolved.identity.isolation,
        ...imageLayer(resolved.image, this.#with.mode.kind),
        captureLayer(capture),
        ...cgroups.isolation,
        ...diskLayers(disk, this.#options.config.sandbox_disk_limit),
      ],
    };
  }

  /** The first id of its block names the project of a sandbox: nobody else has it, and it is as free when the block is. */
  #limitDisk(sandboxId: string, { plan }: ResolvedIdentity): Promise<DiskLimit> {
    const { folders, mode, quota } = this.#with;
    const project = mode.kind === "root" ? plan.uidMap.find(({ inside }) => inside === 0)?.outside : undefined;
    const limitBytes = this.#options.config.sandbox_disk_limit;
    return limitDisk(sandboxId, { project, limitBytes }, folders, quota);
  }

  #makeCgroups(intent: SandboxIntent, { memoryBytes, processLimit }: ResolvedIntent): SandboxCgroups {
    const limits = { memoryBytes, cpuMillis: intent.resources.cpuMillis, pids: processLimit };
    return makeCgroups(this.#cgroupName(intent.sandboxId), limits, this.#with.cgroups);
  }

  /** A folder of the agent's own, under its outside id. An existing one is kept; its owner follows when the policy changed the id. */
  async #prepareFolder(folder: string, identity: ResolvedIdentity): Promise<void> {
    await makeFolder(folder, 0o700);
    if (this.#with.mode.kind === "root") await chown(folder, identity.outsideUid, identity.outsideGid);
  }

  async #prepareOwnFolders(sandboxId: string, resolved: ResolvedIntent): Promise<void> {
    const { folders } = this.#with;
    if (resolved.ownFolders.length > 0) await makeFolder(folders.work(sandboxId), 0o700);
    for (const { source } of ownFolders(sandboxId, resolved, folders)) {
      await this.#prepareFolder(source, resolved.identity);
    }
  }

  async #describe(launched: LaunchRecord): Promise<DriverSandbox> {
    const { folders, processes } = this.#with;
    const started = await folders.readStarted(launched.sandboxId).catch((error: unknown) => {
      // That nothing runs must not be said of what does: its record may be restored, or its end asked for.
      if (processes.withTitle(launched.title).length > 0) throw error;
      return unlessUnreadable(undefined)(error);
    });
    const running =
      started !== undefined && started.generation === launched.generation && isAlive(processes, started.record)
        ? started
        : undefined;
    if (running !== undefined) this.#follow(running, launched);
    const { sandboxId, generation, name, workspace } = launched;
    return { sandboxId, generation, name, workspace, running };
  }

  /** Notices its end, and when it takes too much of the disk. */
  #follow(
    { sandboxId, generation, record, isolation }: StartedSandbox,
    { volumes }: Pick<LaunchRecord, "volumes">,
  ): void {
    const { folders } = this.#with;
    this.#volumes.follow(sandboxId, volumes);
    this.#redirects.add({ sandboxId, generation, folders: volumes.gitFolders });
    this.#watch.add(sandboxId, generation, record);
    const own = [folders.home(sandboxId), join(folders.overlay(sandboxId), "upper"), folders.work(sandboxId)];
    const prevented = isolation.some(({ name }) => name === "disk_quota");
    if (!prevented) this.#disk.add({ sandboxId, generation, folders: own });
    const cgroups = existingCgroups(this.#cgroupName(sandboxId), this.#with.cgroups);
    this.#limits.add({ sandboxId, generation, folders: cgroups });
  }

  /** Ends whatever runs of this sandbox, recorded or not, and removes its cgroups and socket. */
  async #end(launched: Traces): Promise<void> {
    const { clock, folders, processes } = this.#with;
    this.#watch.remove(launched.sandboxId);
    this.#disk.remove(launched.sandboxId);
    this.#limits.remove(launched.sandboxId);
    const cgroups = [
      ...new Set([...launched.cgroups, ...existingCgroups(this.#cgroupName(launched.sandboxId), this.#with.cgroups)]),
    ];
    thaw(cgroups);
    const started = await folders.readStarted(launched.sandboxId).catch(() => undefined);
    const pids = new Set([...processes.withTitle(launched.title), ...cgroupMembers(cgroups)]);
    const records = [...pids].flatMap((pid) => recordOf(processes, pid) ?? []);
    if (started !== undefined && isAlive(processes, started.record)) records.unshift(started.record);
    await endProcesses(processes, records, clock);
    await removeCgroups(cgroups, clock);
    // Until nothing could plant one any more.
    this.#redirects.remove(launched.sandboxId);
    this.#volumes.ended(launched.sandboxId, launched.volumes);
    await rm(controlSocketPath(launched.controlFolder), { force: true });
    await folders.removeStarted(launched.sandboxId);
  }

  /** What a launch of this sandbox left, or would have left where no record says more: damaged state must not make a sandbox immortal. */
  async #traces(sandboxId: string): Promise<Traces> {
    const launched = await this.#with.folders.readLaunch(sandboxId).catch(unlessUnreadable(undefined));
    return (
      launched ?? {
        sandboxId,
        title: this.#title(sandboxId),
        controlFolder: this.#controlFolder(sandboxId),
        cgroups: [],
        volumes: NO_VOLUMES,
      }
    );
  }

  #controlFolder(sandboxId: string): string {
    return join(this.#options.paths.runtime, "s", shortId(sandboxId));
  }

  #cgroupName(sandboxId: string): string {
    return `openshell-${shortId(this.#options.paths.state)}-${shortId(sandboxId)}`;
  }

  /** Known to nobody inside, so that no agent can be taken for an init. */
  #title(sandboxId: string): string {
    return `openshell-init:${shortId(this.#options.paths.state, sandboxId)}`;
  }
}

/** Takes a damaged record for `instead`; what else failed has failed. */
function unlessUnreadable<T>(instead: T): (error: unknown) => T {
  return (error) => {
    if (error instanceof DriverError && error.code === "state_unreadable") return instead;
    throw error;
  };
}

function notFound(sandboxId: string): DriverError {
  return new DriverError("sandbox_not_found", `sandbox ${sandboxId} has no files here`, {
    next: "Delete it and create it again",
  });
}

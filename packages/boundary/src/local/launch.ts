import { spawn } from "node:child_process";
import type { Readable, Writable } from "node:stream";
import { RuntimeError } from "@openshell/base";
import type { IsolationLayer } from "../boundary.ts";
import { ByteReader } from "./bytes.ts";
import { describeErrno } from "./errno.ts";
import { FRAME_ERROR, FRAME_HEAD_BYTES, FRAME_MAX_BYTES, FRAME_READY, readFrameHead, readLayers } from "./frames.ts";
import type { LaunchPlan } from "./plan.ts";
import { encodePlan } from "./plan-encode.ts";

/** A launcher that has not answered after this long is killed; its own limit (10 s) normally ends it first. */
export const LAUNCH_LIMIT_MS = 12_000;

/** What the launcher reports once init stands and listens. */
export interface LaunchedSandbox {
  /** Host pid of init; with `startTicks` (field 22 of /proc/PID/stat) it names the process for good. */
  readonly pid: number;
  readonly startTicks: bigint;
  /** SO_NETNS_COOKIE of the sandbox's network namespace: hosts check every descriptor against it. */
  readonly netnsCookie: bigint;
  /** The layers set up so far; `Boundary.confirm` adds those that bind the agent. */
  readonly isolation: readonly IsolationLayer[];
}

export interface LaunchOptions {
  /** Path of `openshell-init`. */
  readonly initPath: string;
  readonly limitMs?: number;
  /** argv[0] of the launcher and of everything it forks, so that a crashed gateway finds them again. Default: the path. */
  readonly title?: string;
}

/**
 * Starts a sandbox's init. Resolves when it listens on the plan's control socket; rejects with `sandbox_launch_failed`
 * naming the step, the object and the kernel's reason, in which case nothing is left running.
 */
export async function launchSandbox(plan: LaunchPlan, options: LaunchOptions): Promise<LaunchedSandbox> {
  const bytes = encodePlan(plan);
  const child = spawn(options.initPath, ["launch"], {
    stdio: ["pipe", "ignore", "pipe", "pipe"],
    env: {},
    cwd: "/",
    argv0: options.title ?? options.initPath,
  });
  const [input, , errors, answer] = child.stdio as unknown as readonly [Writable, null, Readable, Readable];
  const limit = setTimeout(() => child.kill("SIGKILL"), options.limitMs ?? LAUNCH_LIMIT_MS);
  try {
    // A launcher that ends early breaks the pipe; its answer says why.
    input.on("error", () => {});
    input.end(bytes);
    const [output, complaint] = await Promise.all([
      collect(answer, FRAME_MAX_BYTES),
      collect(errors, 4096),
      new Promise<void>((resolve, reject) => {
        child.once("error", (cause) => reject(cannotStart(options.initPath, cause)));
        child.once("close", () => resolve());
      }),
    ]);
    return decodeAnswer(output, complaint.toString(), plan);
  } finally {
    clearTimeout(limit);
  }
}

async function collect(stream: Readable, limit: number): Promise<Buffer> {
  const parts: Buffer[] = [];
  let size = 0;
  for await (const part of stream as AsyncIterable<Buffer>) {
    size += part.length;
    if (size <= limit) parts.push(part);
  }
  return Buffer.concat(parts);
}

function cannotStart(path: string, cause: unknown): RuntimeError {
  return new RuntimeError("sandbox_launch_failed", `The sandbox launcher ${path} cannot be started`, {
    next: "Build it with native/build.sh, or set OPENSHELL_DIST to the folder that holds native/openshell-init",
    cause,
  });
}

function decodeAnswer(output: Buffer, complaint: string, plan: LaunchPlan): LaunchedSandbox {
  try {
    const head = readFrameHead(output);
    const body = new ByteReader(output.subarray(FRAME_HEAD_BYTES, FRAME_HEAD_BYTES + head.size));
    if (head.type === FRAME_READY) {
      const pid = body.u32();
      const startTicks = body.u64();
      const netnsCookie = body.u64();
      return { pid, startTicks, netnsCookie, isolation: readLayers(body) };
    }
    if (head.type === FRAME_ERROR) throw launchError(body.string(), body.i32(), body.string(), plan);
  } catch (error) {
    if (error instanceof RuntimeError) throw error;
  }
  throw new RuntimeError("sandbox_launch_failed", "The sandbox launcher ended without an answer", {
    next: complaint === "" ? "Look for it in the kernel's log (out of memory, seccomp)" : complaint.trim(),
  });
}

/** What to do about a step that failed, for the causes that people meet. */
const NEXT: Readonly<Record<string, string>> = {
  clone:
    "Allow user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns; in a container, its seccomp profile too)",
  uid_map: "Check that the gateway's user may map these ids (/etc/subuid, or run the gateway as root)",
  gid_map: "Check that the gateway's user may map these ids (/etc/subgid, or run the gateway as root)",
  cgroup: "Check that this cgroup is delegated to the gateway's user",
  freezer: "Check that this cgroup is delegated to the gateway's user",
  proc: "Run outside a container that masks /proc, or give that container an unmasked /proc",
  nft: "Load the kernel's nf_tables and nft_redir modules, or use the capture mode listener_per_port",
  "sk-lookup-load": "Run the gateway with CAP_BPF and CAP_NET_ADMIN, or use another capture mode",
  "sk-lookup-map": "Run the gateway with CAP_BPF and CAP_NET_ADMIN, or use another capture mode",
  "volume-open": "Give a path that exists and contains no symbolic link",
  "volume-clone": "Choose a folder without other mounts inside, or mount those as volumes of their own",
  "volume-idmap": "Move the folder to a file system that supports id-mapped mounts (ext4, xfs, btrfs, tmpfs)",
};

const ENOSPC = 28;

function launchError(step: string, errno: number, detail: string, plan: LaunchPlan): RuntimeError {
  const object = detail === "" ? "" : ` (${detail})`;
  // Of namespaces it does not mean a disk: user_namespaces(7).
  const why =
    step === "clone" && errno === ENOSPC ? "the limit of namespaces is reached (ENOSPC)" : describeErrno(errno);
  return new RuntimeError(
    "sandbox_launch_failed",
    `Sandbox ${plan.sandboxId} could not be set up: step ${step}${object}: ${why}`,
    { next: NEXT[step] ?? "", cause: { step, errno, detail } },
  );
}

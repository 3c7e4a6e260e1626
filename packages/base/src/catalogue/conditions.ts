import type { Meaning } from "./meaning.ts";

/** Reasons of a sandbox's condition `Ready`: why it is ready, or not. Public, so the list only grows. */
export const READY_REASONS = {
  ComputeResourceMissing: ["The sandbox's processes are gone, and nobody saw them end.", "Start it again"],
  ConfigurationInvalid: [
    "The policy or the providers cannot be taken up.",
    "Correct what the condition ConfigurationReady says",
  ],
  DeleteFailed: ["Something of the sandbox could not be removed.", "Follow the message, then delete it again"],
  Deleting: ["It is being removed.", "Nothing"],
  DependenciesNotReady: ["What the sandbox needs is not there yet.", "Wait, or read the condition's message"],
  DependenciesReady: ["It is ready.", "Nothing"],
  DiskLimitExceeded: [
    "Its files take more than the driver allows, so it was stopped.",
    "Free space in it or raise the limit, then start it again",
  ],
  IsolationBelowMinimum: [
    "Less isolation is in force than was demanded.",
    "Follow the message, or demand less with --minimum-isolation",
  ],
  IsolationBreached: [
    "A probe from inside got through a layer that must hold.",
    "Do not use this machine for sandboxes; report it with the kernel's version",
  ],
  IsolationNotProven: [
    "The sandbox did not answer what it can reach.",
    "Start it again; restart the gateway if that does not help",
  ],
  MachineRestarted: ["The machine was restarted.", "Start it again; with a restart policy the gateway does"],
  MainProcessCompleted: ["The main process has ended with status 0.", "Start it again to run it once more"],
  MainProcessFailed: ["The main process has ended with another status than 0.", "Read its log, then start it again"],
  ProvisioningTimedOut: ["It was not ready in time.", "Read its log; delete it, or start it again"],
  RestartPending: [
    "The main process has ended and is started again at the time shown.",
    "Nothing; `openshell sandbox stop NAME` ends that",
  ],
  SandboxEnded: [
    "The sandbox's processes ended before its main process had told a status.",
    "Read its log, then start it again",
  ],
  StartFailed: ["It could not be started.", "Follow the message, then start it again"],
  Starting: ["It is being started.", "Wait"],
  StopFailed: ["Its processes do not end.", "Stop it again; one that waits for a device ends when that answers"],
  Stopped: ["It is stopped.", "Start it with `openshell sandbox start NAME`"],
  Stopping: ["It is being stopped.", "Wait"],
  SupervisorNotConnected: [
    "Its host is not connected to the gateway.",
    "Wait; read the gateway's log when it persists",
  ],
  VolumeTampered: [
    "It redirected a repository in a volume to a configuration of its own, so it was stopped.",
    "Read what it left in the volume before you run git there",
  ],
} as const satisfies Readonly<Record<string, Meaning>>;

export type ReadyReason = keyof typeof READY_REASONS;

import type { ChildProcess } from "node:child_process";
import {
  type RunOptions,
  type RunResult,
  runCommand,
  type SpawnOptions,
  spawnCommand,
  wrapCommand,
} from "../command.ts";

/** What a command sees of the test internet. */
export interface PlaceOptions {
  /**
   * True lets the C library resolve names through the test name server (a private mount namespace with another
   * /etc/resolv.conf): for plain clients. The product has `resolvers` for that and must see an ordinary machine.
   */
  readonly names?: boolean;
}

/** Starts commands at one place in the test internet. */
export interface CommandRunner {
  /** Runs to the end; exact output and exit status. */
  run(argv: readonly string[], options?: RunOptions & PlaceOptions): Promise<RunResult>;
  /** Starts in a session of its own; the caller ends it. */
  spawn(argv: readonly string[], options?: SpawnOptions & PlaceOptions): ChildProcess;
  /** The full command line, for callers that spawn by themselves. */
  command(argv: readonly string[], options?: SpawnOptions & PlaceOptions): readonly string[];
}

/** Commands in the namespace of process `networkOf`, or in this process's. */
export function commandsIn(namesFolder: string, networkOf?: number): CommandRunner {
  const placed = <T extends SpawnOptions & PlaceOptions>(options: T | undefined): T => {
    const { names, ...rest } = options ?? ({} as T);
    return { ...(networkOf === undefined ? {} : { networkOf }), ...(names ? { namesFolder } : {}), ...rest } as T;
  };
  return {
    run: (argv, options) => runCommand(argv, placed(options)),
    spawn: (argv, options) => spawnCommand(argv, placed(options)),
    command: (argv, options) => wrapCommand(argv, placed(options)),
  };
}

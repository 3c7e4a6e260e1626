import type { Fault, Group } from "./fault.ts";
import { configuration } from "./faults/configuration.ts";
import { database, kubernetes, performance, security } from "./faults/elsewhere.ts";
import { processes } from "./faults/processes.ts";
import { providers } from "./faults/providers.ts";
import { sessions } from "./faults/sessions.ts";
import { firstLook, streamedConfiguration } from "./faults/streamed-configuration.ts";

/** Every known fault of the implementation before this one, by area. */
export const groups: readonly Group[] = [
  streamedConfiguration,
  firstLook,
  configuration,
  providers,
  processes,
  sessions,
  kubernetes,
  database,
  performance,
  security,
];

export const faults: readonly Fault[] = groups.flatMap((group) => group.faults);

import type { Meaning } from "./meaning.ts";

/** Exit statuses of the command line that are its own. */
export const EXIT_STATUSES = {
  0: ["It was done.", "Nothing"],
  1: ["It failed.", "Follow the message"],
  2: ["The command was used wrongly; nothing was done.", "Correct it: `openshell COMMAND --help`"],
  74: ["Output or input could not be delivered.", "Check what the command did before running it again"],
  124: ["A limit of time passed.", "Look at the state; set a longer limit if it only takes longer"],
  126: ["The program cannot be executed in the sandbox.", "Check its rights and its format"],
  127: ["The program does not exist in the sandbox.", "Mount it with --volume, or use an image that has it"],
  130: ["The command was interrupted.", "Nothing"],
} as const satisfies Readonly<Record<number, Meaning>>;

export type ExitStatus = keyof typeof EXIT_STATUSES;

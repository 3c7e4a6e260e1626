/** The command line: finds the command, loads it and nothing else, runs it, and turns what it throws into text and a status. */
import { dispatch } from "./dispatch.ts";
import { errorLines, toCliError } from "./errors.ts";

for (const event of ["uncaughtException", "unhandledRejection"] as const) {
  process.once(event, (error: unknown) => {
    // A mistake of this program: still one line, and never a stack trace, which may quote what must not be shown.
    process.stderr.write(`${errorLines(toCliError(error)).join("\n")}\n`);
    process.exit(1);
  });
}

process.exitCode = await dispatch(process.argv.slice(2));
// Whatever a command still holds (a keep-alive connection, a terminal) ends with it; its output has been taken by then.
process.exit();

/** The command line: finds the command, loads it and nothing else, runs it, and turns what it throws into text and a status. */
import { dispatch } from "./dispatch.ts";

process.exitCode = await dispatch(process.argv.slice(2));
// Whatever a command still holds (a keep-alive connection, a terminal) ends with it; its output has been taken by then.
process.exit();

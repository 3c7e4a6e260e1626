/** Sandboxes whose names begin with this are simulated; all others are real. */
export const SIMULATED = "simulated-";
/** The program of the simulated host, beside the gateway's. */
export const SIMULATED_HOST = "simulated-host.mjs";
/** These begin with as many log lines as the gateway keeps, so that nothing of them fills up later. */
export const SIMULATED_FULL = `${SIMULATED}full-`;

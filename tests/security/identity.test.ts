import { readFileSync } from "node:fs";
import { expect } from "vitest";
import type { TestSandbox } from "../support/api.ts";
import { attack, openAttack, openLab, PYTHON } from "../support/attack.ts";
import { CLIENT_SCRIPT, send, statuses } from "../support/attack-client.ts";
import type { TestHost } from "../support/internet/index.ts";

/** As an allowed program: other paths, other names, swapped files, masks. Binary rules are hygiene, and these hold. */

const HOST = "api.example-allowed.com";
const TOOL_HOST = "tool.example-allowed.com";
let host: TestHost;
let toolHost: TestHost;

/** curl may reach one host, a program in the agent's own home another. */
const POLICY = `version: 1
network_policies:
  curl:
    endpoints: [{host: ${HOST}, ports: [80, 443], protocol: rest, enforcement: enforce, access: full}]
    binaries: [{path: /usr/bin/curl}]
  tool:
    endpoints: [{host: ${TOOL_HOST}, ports: [80], protocol: rest, enforcement: enforce, access: full}]
    binaries: [{path: /sandbox/tool}]
`;

/** Says who it is in every way but the true one, then asks for a page. */
const MASK = `
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/prctl.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int argc, char **argv) {
  int curl = open("/usr/bin/curl", O_RDONLY);
  prctl(PR_SET_NAME, "curl");
  strcpy(argv[0], "curl");
  int mask = prctl(PR_SET_MM, PR_SET_MM_EXE_FILE, curl, 0, 0);
  printf("exe_file %s\\n", mask < 0 ? strerrorname_np(errno) : "done");
  struct prctl_mm_map map; memset(&map, 0, sizeof map); map.exe_fd = curl;
  mask = prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof map, 0);
  printf("mm_map %s\\n", mask < 0 ? strerrorname_np(errno) : "done");
  fflush(stdout);
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *a;
  if (getaddrinfo(argv[1], "80", &hints, &a) != 0) return 1;
  int s = socket(a->ai_family, SOCK_STREAM, 0);
  if (connect(s, a->ai_addr, a->ai_addrlen) < 0) return 2;
  dprintf(s, "GET /masked HTTP/1.1\\r\\nHost: %s\\r\\nConnection: close\\r\\n\\r\\n", argv[1]);
  char buffer[4096]; int n;
  while ((n = read(s, buffer, sizeof buffer)) > 0) write(1, buffer, n);
  return 0;
}`;

openLab({
  scripts: CLIENT_SCRIPT,
  c: { mask: MASK },
  prepare: async (net) => {
    host = await net.host(HOST);
    toolHost = await net.host(TOOL_HOST);
  },
  box: () => ({ policy: POLICY }),
});

const code = (url: string) => `-s -m 10 -o /dev/null -w '%{http_code}\\n' ${url}`;

/** Runs and expects that nothing arrived at either host. */
async function expectNothing(box: TestSandbox, script: string, env = {}): Promise<string> {
  host.clearReceived();
  toolHost.clearReceived();
  const { stdout } = await box.sh(script, { env });
  expect([...host.received().requests, ...toolHost.received().requests].map((one) => one.target)).toEqual([]);
  return stdout;
}

attack(
  "the allowed program, so that refusals below mean something",
  "its request arrives; another program's does not",
  { root: "200", user: "200" },
  async ({ box }, expected) => {
    expect((await box.sh(`curl ${code(`https://${HOST}/`)}`)).stdout.trim()).toBe(expected);
    const answer = await send(box, `GET / HTTP/1.1\r\nHost: ${HOST}\r\n\r\n`, { to: [HOST, 80] });
    expect(statuses(answer)).toEqual([403]);
  },
);

attack(
  "a copy of the allowed program elsewhere, and other programs under its name",
  "no request arrives",
  { root: "403", user: "403" },
  async ({ box }) => {
    await expectNothing(
      box,
      `mkdir -p /tmp/usr/bin ~/usr/bin; cp /usr/bin/curl /tmp/usr/bin/curl; cp /usr/bin/curl ~/curl; cp /usr/bin/curl '/tmp/curl (deleted)';
      for c in /tmp/usr/bin/curl ~/curl '/tmp/curl (deleted)'; do "$c" ${code(`https://${HOST}/copy`)}; done;
      bash -c 'exec -a /usr/bin/curl ${PYTHON} -c "import urllib.request as u; u.urlopen(\\"http://${HOST}/argv0\\")"' 2>/dev/null;
      cp ${PYTHON} '/tmp/curl'; cd /tmp; PATH=/tmp:$PATH curl -c 'import urllib.request as u; u.urlopen("http://${HOST}/renamed")' 2>/dev/null; true`,
    );
  },
);

attack(
  "masks: argv, process name, PR_SET_MM_EXE_FILE, PR_SET_MM_MAP",
  "the mask is refused and no request arrives",
  { root: "EPERM or EINVAL", user: "EPERM or EINVAL" },
  async ({ box }, expected) => {
    const stdout = await expectNothing(box, `/attack/mask ${HOST}`);
    for (const line of stdout.split("\n").slice(0, 2)) expect(expected).toContain(line.split(" ")[1]);
    expect(statuses(stdout)).toEqual([403]);
  },
);

attack(
  "an unlinked program, a program in memory (memfd), one that replaced the allowed one by rename or bind mount",
  "no request arrives",
  { root: "denied", user: "denied" },
  async ({ box }) => {
    const script = `
cp /usr/bin/curl /tmp/gone; (sleep 0.3; rm /tmp/gone) & sh -c 'sleep 0.6; exec 3</tmp/x' 2>/dev/null; cp /usr/bin/curl /tmp/gone; /tmp/gone ${code(`https://${HOST}/gone`)} & rm /tmp/gone; wait
${PYTHON} - <<'E'
import os
fd=os.memfd_create("curl",0)
with open("/usr/bin/curl","rb") as f: os.write(fd,f.read())
if os.fork()==0: os.execve(fd,["curl","-s","-m","10","https://${HOST}/memfd"],os.environ)
os.wait()
E
mv /usr/bin/curl /tmp/c 2>/dev/null; cp ${PYTHON} /usr/bin/curl 2>/dev/null; ln -sf ${PYTHON} /usr/bin/curl 2>/dev/null; mount --bind ${PYTHON} /usr/bin/curl 2>/dev/null; true`;
    await expectNothing(box, script);
    expect((await box.sh(`curl ${code(`https://${HOST}/`)}`)).stdout.trim()).toBe("200");
  },
);

attack(
  "an allowed program in the agent's own home that is overwritten or replaced after its first use",
  "what replaced it gets nothing through; the finding is in the log",
  { root: "refused by its hash", user: "refused by its hash" },
  async ({ box }) => {
    toolHost.clearReceived();
    expect((await box.sh(`cp /usr/bin/curl ~/tool; ~/tool ${code(`http://${TOOL_HOST}/first`)}`)).stdout.trim()).toBe(
      "200",
    );
    expect(toolHost.received().requests.map((one) => one.target)).toEqual(["/first"]);
    // Overwritten in place with the old times, replaced by rename, replaced by a longer copy of itself.
    const script = `
touch -r ~/tool /tmp/times; cat ${PYTHON} > ~/tool; touch -r /tmp/times ~/tool; ~/tool -c 'import urllib.request as u; u.urlopen("http://${TOOL_HOST}/overwritten")' 2>/dev/null
cp ${PYTHON} /tmp/t; mv /tmp/t ~/tool; ~/tool -c 'import urllib.request as u; u.urlopen("http://${TOOL_HOST}/renamed")' 2>/dev/null
cp /usr/bin/curl /tmp/t; printf x >> /tmp/t; mv /tmp/t ~/tool; ~/tool ${code(`http://${TOOL_HOST}/longer`)}; true`;
    await expectNothing(box, script);
    await box.logged(/executable changed since its first use/);
  },
);

attack(
  "a socket of a denied program that an allowed one holds as well",
  "every owner has to be allowed: no request arrives",
  { root: "denied", user: "denied" },
  async ({ box }) => {
    const script = `
import os,socket,time,subprocess
s=socket.socket(); s.set_inheritable(True)
# curl waits and holds the socket too.
p=subprocess.Popen(["/usr/bin/curl","-s","-m","4","--noproxy","*","telnet://127.0.0.1:3128"],close_fds=False,stdin=subprocess.PIPE)
time.sleep(0.3)
s.connect((socket.gethostbyname("${HOST}"),80))
s.sendall(b"GET /shared HTTP/1.1\\r\\nHost: ${HOST}\\r\\n\\r\\n")
s.settimeout(3)
try: print(s.recv(200).decode("latin1").split("\\r\\n")[0])
except OSError as e: print(e)
p.kill()`;
    host.clearReceived();
    const { stdout } = await box.exec([PYTHON, "-c", script]);
    expect(stdout).not.toContain(" 200 ");
    expect(host.received().requests).toEqual([]);
  },
);

openAttack(
  "lend the allowed program's identity to other code (LD_PRELOAD, its own options, an allowed interpreter)",
  "no request of the agent's code arrives",
  { root: "denied", user: "denied" },
  async ({ box }) => {
    const source = `#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) void run(void) { unsetenv("LD_PRELOAD"); execl("/usr/bin/curl", "curl", "-s", "http://${HOST}/preloaded", (char *)0); }`;
    await expectNothing(
      box,
      `printf '%s' '${source.replaceAll("'", "'\\''")}' > /tmp/p.c; cc -shared -fPIC -o /tmp/p.so /tmp/p.c; LD_PRELOAD=/tmp/p.so /usr/bin/curl --version; true`,
    );
  },
);

attack(
  "the log about refused programs: paths with line ends, terminal codes and look-alike lines",
  "one line an event, with everything escaped",
  { root: "escaped", user: "escaped" },
  async ({ box, gateway }) => {
    const script = `d="/tmp/$(printf 'a\\nINFO fake allowed line \\033[31m\\302\\205\\342\\200\\256')"; mkdir -p "$d"; cp /usr/bin/curl "$d/c"; "$d/c" ${code(`http://${HOST}/x`)}; curl -s -m 5 -H 'Host: a' "http://${HOST}/%0aINFO%20fake" -o /dev/null; true`;
    await box.sh(script);
    await box.logged(/fake allowed line/);
    for (const line of await box.logs()) expect(line).not.toMatch(/[\0-\x1f\x7f-\x9f\u202a-\u202e]/);
    const { readdirSync } = await import("node:fs");
    const { join } = await import("node:path");
    const folder = join(gateway.folders.state, "logs");
    for (const name of readdirSync(folder)) {
      const text = readFileSync(join(folder, name), "utf8");
      expect(text, name).not.toMatch(/\x1b|\u202e|^INFO fake/m);
    }
  },
);

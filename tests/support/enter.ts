import { spawnSync } from "node:child_process";
import { readlinkSync } from "node:fs";
import { systemCalls } from "./system-calls.ts";

/**
 * Enters the network namespace of the system tests.
 *
 * Node cannot change its own namespace, so tests/run.ts starts vitest through the command that `enterCommand` builds
 * (`node tests/support/enter.ts COMMAND` starts any other):
 *
 * 1. A small subreaper, so that a daemon started by a test stays a descendant of the run (leaks.ts finds it) and
 *    nothing outlives the run.
 * 2. A network namespace without any link. As root also a mount namespace with shared propagation, as on a machine
 *    run by systemd: mounts that the product should have kept to itself show up, but not on the machine.
 * 3. As a user first a user namespace. Test code has capabilities in it (to make links and further namespaces); what
 *    tests start as the product drops them (command.ts) and is then an ordinary user. There is no mount namespace
 *    here: its inherited mounts would be locked together, which an ordinary user's are not.
 *    Started by root (`enterAsUserCommand`), the namespace maps every id to itself, so that the product sees what it
 *    would outside: root's files are root's, set-user-id programs work, setgroups is allowed. Test code then has only
 *    the capabilities it needs, none over files. Started by the user (`enterCommand`), only the user's own id can be
 *    mapped: the files of others appear as the overflow id's.
 */

/** Holds the network namespace that `enterCommand` made, to recognise it from inside. */
export const NETWORK_VARIABLE = "OPENSHELL_TEST_NETWORK";

/** Holds the pid of the subreaper, an ancestor of everything that tests start. */
export const REAPER_VARIABLE = "OPENSHELL_TEST_REAPER";

/**
 * What test code may do in a user namespace that maps every id: networks, namespaces and mounts, looking at and ending
 * processes. Nothing that overrides file permissions: root's files are mapped.
 */
const HARNESS_CAPABILITIES = ["net_admin", "net_raw", "net_bind_service", "sys_admin", "sys_ptrace", "kill"];

/**
 * Runs a command in a new user and network namespace (0x50000000) whose ids are the outer ones; only root may map so.
 * The map is written from outside, after the child has left.
 */
const MAP_ALL_IDS = `
my ($unshare, @argv) = @ARGV;
pipe(my $mapped, my $map) && pipe(my $left, my $leave) or die "pipe: $!\\n";
my $child = fork // die "fork: $!\\n";
if (!$child) {
  close $map; close $left;
  syscall($unshare + 0, 0x50000000) == 0 or die "unshare: $!\\n";
  close $leave;
  (sysread($mapped, my $go, 1) // 0) == 1 or exit 125;
  exec { $argv[0] } @argv or die "$argv[0]: $!\\n";
}
close $mapped; close $leave;
for my $name (qw(INT TERM HUP)) { $SIG{$name} = sub { kill $name, $child } }
sysread($left, my $end, 1);
for my $kind (qw(uid gid)) {
  open(my $file, ">", "/proc/$child/\${kind}_map") or die "\${kind}_map: $!\\n";
  syswrite($file, "0 0 4294967295\\n") or die "\${kind}_map: $!\\n";
}
syswrite($map, "1");
1 while waitpid($child, 0) < 0 && $!{EINTR};
exit(($? & 127) ? 128 + ($? & 127) : $? >> 8);
`;

/**
 * perl-base is essential on Debian, and the only thing there that can set PR_SET_CHILD_SUBREAPER (36). Adopted
 * children are reaped; those still alive when the run ends are killed and reported on stderr.
 */
const SUBREAPER = `
my ($prctl) = shift @ARGV;
syscall($prctl + 0, 36, 1, 0, 0, 0) == 0 or die "PR_SET_CHILD_SUBREAPER: $!\\n";
$ENV{${REAPER_VARIABLE}} = $$;
my $main = fork // die "fork: $!\\n";
if (!$main) { exec { $ARGV[0] } @ARGV or die "$ARGV[0]: $!\\n" }
for my $name (qw(INT TERM HUP)) { $SIG{$name} = sub { kill $name, $main } }
my $status;
while (!defined $status) { my $pid = waitpid(-1, 0); $status = $? if $pid == $main; last if $pid < 0 && !$!{EINTR} }
for (1 .. 100) {
  my %parent;
  for my $path (glob "/proc/[0-9]*/stat") {
    open(my $file, "<", $path) or next;
    my $line = <$file> // next;
    $parent{$1} = $2 if $line =~ /^(\\d+) \\(.*\\) [^Z] (\\d+)/s;
  }
  my @found = ($$); my @mine;
  while (defined(my $p = shift @found)) { for (keys %parent) { if ($parent{$_} == $p) { push @found, $_; push @mine, $_ } } }
  last unless @mine;
  for (@mine) {
    open(my $file, "<", "/proc/$_/cmdline") or next;
    my $line = <$file> // "";
    $line =~ tr/\\0/ /;
    print STDERR "left behind by the tests, killed: $_ $line\\n";
  }
  kill "KILL", @mine;
  1 while waitpid(-1, 1) > 0;
  select(undef, undef, undef, 0.02);
}
exit(($status & 127) ? 128 + ($status & 127) : $status >> 8);
`;

/** Runs in the new namespace: records it, and brings loopback up. */
const INSIDE = `ip link set lo up || exit 125; ${NETWORK_VARIABLE}=$(readlink /proc/self/ns/net) exec "$@"`;
/** Mounts were made private first: a peer group that the machine is in would carry them out. */
const INSIDE_AS_ROOT = `mount --make-rshared / || exit 125; ${INSIDE}`;

function underSubreaper(argv: readonly string[]): readonly string[] {
  return ["perl", "-e", SUBREAPER, "--", String(systemCalls().prctl), ...argv];
}

/** The command that runs `argv` inside a fresh test network, as the caller. */
export function enterCommand(argv: readonly string[]): readonly string[] {
  const root = process.getuid?.() === 0;
  const namespaces = root
    ? ["--net", "--mount", "--propagation", "private"]
    : ["--user", "--map-current-user", "--keep-caps", "--net"];
  const script = root ? INSIDE_AS_ROOT : INSIDE;
  return underSubreaper(["unshare", ...namespaces, "--", "sh", "-c", script, "sh", ...argv]);
}

/** The command with which root runs `argv` inside a fresh test network as a user, in the environment `env` alone. */
export function enterAsUserCommand(
  argv: readonly string[],
  user: { readonly uid: number; readonly gid: number },
  env: Readonly<Record<string, string>>,
): readonly string[] {
  const capabilities = ["-all", ...HARNESS_CAPABILITIES.map((name) => `+${name}`)].join(",");
  const ids = ["--reuid", String(user.uid), "--regid", String(user.gid), "--clear-groups"];
  const privileges = [`--inh-caps=${capabilities}`, `--ambient-caps=${capabilities}`];
  const assignments = Object.entries(env).map(([key, value]) => `${key}=${value}`);
  const inside = ["sh", "-c", INSIDE, "sh", ...argv];
  return [
    ...["perl", "-e", MAP_ALL_IDS, "--", String(systemCalls().unshare)],
    ...["setpriv", ...ids, ...privileges, "--", "env", "-i", ...assignments, ...underSubreaper(inside)],
  ];
}

/** True inside a namespace that `enterCommand` made. */
export function insideTestNetwork(): boolean {
  return process.env[NETWORK_VARIABLE] === readlinkSync("/proc/self/ns/net");
}

/** Throws, with the command to use, unless this process is inside a test network. */
export function requireTestNetwork(): void {
  if (insideTestNetwork()) return;
  throw new Error("not inside a test network; run system tests with: node tests/run.ts [--mode root|user] [files]");
}

// node tests/support/enter.ts COMMAND [ARGUMENT…]: for benchmarks and for looking around by hand.
if (import.meta.main) {
  const [program, ...rest] = enterCommand(process.argv.slice(2));
  const { status, signal } = spawnSync(program!, rest, { stdio: "inherit" });
  process.exitCode = signal === null ? (status ?? 1) : 128;
}

import { fromBinary } from "@bufbuild/protobuf";
import { ExecSandboxEventSchema, OpenShell } from "@openshell/api";
import { SCOPE } from "../../tests/support/api.ts";
import { type Duplex, encode, frameOf, type GrpcClient, pathOf } from "./grpc.ts";

const METHOD = OpenShell.method.execSandboxInteractive;
/** Number of clock_gettime(2), which small Perls have no module for. */
const CLOCK_GETTIME: Readonly<Record<string, number>> = { x64: 228, arm64: 113 };

/**
 * Takes three paths a line. It keeps an answer to the first one open, asks for the second on another connection, which stays, and
 * says so. When the first is cut it asks for the third on the other connection, again and again until it is served, and says by the
 * clock of the machine when both were. Small: a hundred run at once. What it has seen it tells a moment later, when that takes no
 * time from those that still wait.
 */
const PROGRAM = String.raw`
use IO::Socket::INET;
my ($host, $clock) = @ARGV;
sub now { my $time = pack("qq", 0, 0); syscall($clock, 1, $time); my ($s, $ns) = unpack("qq", $time); $s * 1e3 + $ns / 1e6 }
sub ask {
  my ($path, $socket) = @_;
  $socket //= IO::Socket::INET->new(PeerAddr => $host, PeerPort => 80) or return;
  print $socket "GET $path HTTP/1.1\r\nHost: $host\r\n\r\n";
  my ($status, $length, $left) = (scalar(<$socket>) // "", 0, 0);
  while (my $line = <$socket>) {
    $left = 1 if $line =~ /^connection: close/i;
    $length = $1 if $line =~ /^content-length: (\d+)/i;
    last if $line eq "\r\n";
  }
  read $socket, my $body, $length if $length > 0;
  return (scalar($status =~ / 200 /), $left || $status eq "" ? undef : $socket);
}
$| = 1;
print "ready\n";
my ($ok, $open, $other);
while (my $line = <STDIN>) {
  my ($held, $before, $next) = split " ", $line;
  ($ok, $open) = ask($held);
  ($ok, $other) = ask($before, $other) if $ok;
  print($ok ? "held\n" : "refused\n");
  next unless $ok;
  1 while defined(<$open>);
  my ($cut, $refused) = (now(), 0);
  for (;;) {
    ($ok, $other) = ask($next, $other);
    last if $ok;
    $refused++;
    select(undef, undef, undef, 0.005);
  }
  my $served = now();
  select(undef, undef, undef, 1);
  print "$cut $served $refused\n";
}
`;

/** What a client inside saw of a change. Milliseconds of CLOCK_MONOTONIC. */
export interface Seen {
  /** The end of an answer that only the policy before allowed. */
  readonly cut: number;
  /** The answer to a request that only the new one allows. */
  readonly served: number;
  /** Requests for it that were refused before. */
  readonly refused: number;
}

/** Now, as {@link Seen} has it. */
export function monotonicMs(): number {
  return Number(process.hrtime.bigint()) / 1e6;
}

/** A client inside a sandbox that waits for orders: neither its start nor the way of its words is part of what is timed. */
export class Prober {
  readonly #call: Duplex;
  #rest = "";
  #answer = Promise.withResolvers<string>();

  private constructor(client: GrpcClient) {
    this.#call = client.duplex(pathOf(METHOD), (bytes) => this.#read(bytes));
    this.#call.ended.catch((error: unknown) => this.#answer.reject(error));
  }

  static async start(client: GrpcClient, sandbox: string, host: string): Promise<Prober> {
    const prober = new Prober(client);
    const command = ["perl", "-e", PROGRAM, host, String(CLOCK_GETTIME[process.arch])];
    const start = { workspaceScope: SCOPE, sandbox, command, noLoginShell: true };
    await prober.#ask(encode(METHOD.input, { payload: { case: "start", value: start } }));
    return prober;
  }

  /** Opens an answer for `held`, after which `before` is served. What is returned resolves when that was cut and `next` was served. */
  async hold(held: string, before: string, next: string): Promise<() => Promise<Seen>> {
    const line = Buffer.from(`${held} ${before} ${next}\n`);
    const word = await this.#ask(encode(METHOD.input, { payload: { case: "stdin", value: line } }));
    if (word !== "held") throw new Error(`a request for ${held} was ${word}`);
    const told = this.#next();
    return async () => {
      const [cut, served, refused] = (await told).split(" ").map(Number);
      return { cut: cut!, served: served!, refused: refused! };
    };
  }

  async end(): Promise<void> {
    this.#call.end();
    await this.#call.ended;
  }

  #next(): Promise<string> {
    this.#answer = Promise.withResolvers();
    // Whoever asked may look at another's first.
    this.#answer.promise.catch(() => {});
    return this.#answer.promise;
  }

  #ask(message: Uint8Array): Promise<string> {
    const answer = this.#next();
    this.#call.write(frameOf(message));
    return answer;
  }

  #read(bytes: Buffer): void {
    const { payload } = fromBinary(ExecSandboxEventSchema, bytes);
    if (payload.case === "exit") this.#answer.reject(new Error(`a prober ended with status ${payload.value.exitCode}`));
    if (payload.case === "stderr") console.error(Buffer.from(payload.value.data).toString());
    if (payload.case !== "stdout") return;
    this.#rest += Buffer.from(payload.value.data).toString();
    const [line, rest] = this.#rest.split("\n");
    if (rest === undefined) return;
    this.#rest = rest;
    this.#answer.resolve(line!);
  }
}

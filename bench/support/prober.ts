import { fromBinary } from "@bufbuild/protobuf";
import { ExecSandboxEventSchema, OpenShell } from "@openshell/api";
import { SCOPE } from "../../tests/support/api.ts";
import { type Duplex, encode, frameOf, type GrpcClient, pathOf } from "./grpc.ts";

const METHOD = OpenShell.method.execSandboxInteractive;

/**
 * Takes a path a line, asks for it until it is served, on one connection as long as that lives, and says how often it was
 * refused. Small: a hundred run at once.
 */
const PROGRAM = String.raw`
use IO::Socket::INET;
my $host = shift;
my $socket;
sub served {
  my $path = shift;
  $socket //= IO::Socket::INET->new(PeerAddr => $host, PeerPort => 80) or return 0;
  print $socket "GET $path HTTP/1.1\r\nHost: $host\r\n\r\n";
  my ($status, $length, $left) = (scalar(<$socket>) // "", 0, 0);
  while (my $line = <$socket>) {
    $left = 1 if $line =~ /^connection: close/i;
    $length = $1 if $line =~ /^content-length: (\d+)/i;
    last if $line eq "\r\n";
  }
  read $socket, my $body, $length;
  undef $socket if $left || $status eq "";
  return $status =~ / 200 /;
}
$| = 1;
print "ready\n";
while (my $path = <STDIN>) {
  chomp $path;
  my $refused = 0;
  until (served($path)) { $refused++; select(undef, undef, undef, 0.005) }
  print "$refused\n";
}
`;

/** A client inside a sandbox that waits for orders: its start is not part of what is timed. */
export class Prober {
  /** Requests that were refused before one was served. */
  refused = 0;
  readonly #call: Duplex;
  #rest = "";
  #answer = Promise.withResolvers<string>();

  private constructor(client: GrpcClient) {
    this.#call = client.duplex(pathOf(METHOD), (bytes) => this.#read(bytes));
    this.#call.ended.catch((error: unknown) => this.#answer.reject(error));
  }

  static async start(client: GrpcClient, sandbox: string, host: string): Promise<Prober> {
    const prober = new Prober(client);
    const start = { workspaceScope: SCOPE, sandbox, command: ["perl", "-e", PROGRAM, host], noLoginShell: true };
    await prober.#ask(encode(METHOD.input, { payload: { case: "start", value: start } }));
    return prober;
  }

  /** Resolves when a request for `path` was answered with 200. */
  async until(path: string): Promise<void> {
    this.refused += Number(
      await this.#ask(encode(METHOD.input, { payload: { case: "stdin", value: Buffer.from(`${path}\n`) } })),
    );
  }

  async end(): Promise<void> {
    this.#call.end();
    await this.#call.ended;
  }

  #ask(message: Uint8Array): Promise<string> {
    this.#answer = Promise.withResolvers();
    this.#call.write(frameOf(message));
    return this.#answer.promise;
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

import { PACE, REFUSED } from "./origin.ts";

/** The main process of a sandbox: asks without a pause of its own, over one connection, what the server tells it to ask. */

export interface ProbeOptions {
  readonly host: string;
  /** Of the run, and of the sandbox: what the server knows the requests by. */
  readonly salt: string;
  readonly name: string;
  /** Environment variable of the credential. */
  readonly key: string;
  /** Status with which it ends once `$HOME/end` is there. */
  readonly exit: number;
}

/**
 * Python's source. Each round asks for `PACE`, whose answer the server keeps for as long as nothing is to be seen, and then
 * for the paths that the answer lists; what is refused on the way is no concern of it. A connection that ends is replaced.
 */
export function probe({ host, salt, name, key, exit }: ProbeOptions): string {
  return `
import os, socket, ssl, sys, time
HEAD = "Host: ${host}\\r\\nSalt: ${salt}\\r\\nBox: ${name}\\r\\nAuthorization: Bearer " + os.environ.get("${key}", "none") + "\\r\\n"
END = os.environ["HOME"] + "/end"
if os.path.exists(END): os.remove(END)
context = ssl.create_default_context()
connection = None
def close():
    global connection
    if connection is not None: connection.close()
    connection = None
def ask(path):
    global connection
    if connection is None:
        raw = socket.create_connection(("${host}", 443), 5)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = context.wrap_socket(raw, server_hostname="${host}")
    started = int(time.time() * 1000)
    connection.sendall(("GET %s HTTP/1.1\\r\\n%sStarted: %d\\r\\n\\r\\n" % (path, HEAD, started)).encode())
    data = b""
    while b"\\r\\n\\r\\n" not in data:
        more = connection.recv(65536)
        if not more: raise ConnectionError()
        data += more
    head, body = data.split(b"\\r\\n\\r\\n", 1)
    head = head.decode("latin1").lower()
    length = int(head.split("content-length:")[1].split("\\r\\n")[0])
    while len(body) < length:
        more = connection.recv(65536)
        if not more: raise ConnectionError()
        body += more
    if "connection: close" in head: close()
    return head.split(" ")[1] == "200", body.decode()
paths = ["${REFUSED}"]
while not os.path.exists(END):
    try:
        passed, body = ask("${PACE}")
        if passed: paths = body.split()
        else: time.sleep(0.01)
        for path in paths: ask(path)
    except (OSError, IndexError):
        close()
        time.sleep(0.01)
sys.exit(${exit})
`;
}

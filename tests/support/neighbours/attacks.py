"""The hostile neighbour: usage attacks.py KIND SECONDS HOST. Prints how often it did what it does."""
import mmap, os, random, resource, select, signal, socket, struct, sys, time

KIND, SECONDS, HOST = sys.argv[1], float(sys.argv[2]), sys.argv[3]
END = time.monotonic() + SECONDS
done = 0


def going():
    return time.monotonic() < END


def dial(address, port, blocking=False):
    s = socket.socket()
    s.setblocking(blocking)
    if blocking:
        s.settimeout(2)
        s.connect((address, port))
    else:
        s.connect_ex((address, port))
    return s


def connections():
    """10,000 connections to anywhere, opened as fast as the kernel takes them."""
    global done
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held = []
    while going():
        try:
            held.append(dial("28.99.%d.%d" % (random.randrange(256), random.randrange(256)), 80))
            done += 1
        except OSError:
            time.sleep(0.01)
        if len(held) >= min(10000, hard - 50):
            for s in held:
                s.close()
            held = []


def dns():
    global done
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect(("127.0.0.1", 53))
    while going():
        name = b"n%09d" % random.randrange(10**9)
        q = struct.pack(">HHHHHH", 1, 0x100, 1, 0, 0, 0) + b"\x0a" + name + b"\x07example\x03org\0\0\1\0\1"
        for _ in range(64):
            try:
                s.send(q)
                done += 1
            except OSError:
                pass


def dnsstream():
    """Questions without end on as many connections as there may be."""
    global done
    q = struct.pack(">HHHHHH", 1, 0x100, 1, 0, 0, 0) + b"\x05names\x07example\x03org\0\0\1\0\1"
    block = (struct.pack(">H", len(q)) + q) * 1000
    held = []
    while going():
        while len(held) < 64:
            held.append(dial("127.0.0.1", 53, True))
        for s in list(held):
            s.setblocking(False)
            try:
                s.send(block)
                done += 1
            except BlockingIOError:
                pass
            except OSError:
                s.close()
                held.remove(s)


def events():
    """Refused requests, each of them another event."""
    global done
    while going():
        try:
            batch = [dial("127.0.0.1", 3128) for _ in range(32)]
        except OSError:
            continue
        for s in batch:
            s.setblocking(True)
            s.settimeout(2)
            try:
                s.sendall(b"CONNECT h%d.example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n" % random.randrange(10**9))
            except OSError:
                pass
        for s in batch:
            try:
                s.recv(4096)
                done += 1
            except OSError:
                pass
            s.close()


def forks():
    global done
    children = []
    while going():
        try:
            pid = os.fork()
        except OSError:
            # As many as there may be, all of them busy, and again.
            time.sleep(0.005)
            for child in children[:64]:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            children = children[64:]
            continue
        if pid == 0:
            while True:
                pass
        children.append(pid)
        done += 1
    for child in children:
        os.kill(child, signal.SIGKILL)


def memory():
    """Takes all that it may have; a child does, since the kernel ends whoever has too much."""
    global done
    while going():
        pid = os.fork()
        if pid == 0:
            signal.alarm(int(SECONDS) + 1)
            held = []
            while going():
                block = mmap.mmap(-1, 16 << 20)
                for offset in range(0, 16 << 20, 4096):
                    block[offset] = 1
                held.append(block)
                # Without a limit on the sandbox the machine is not to be used up.
                if len(held) > 64:
                    held = []
            os._exit(0)
        os.waitpid(pid, 0)
        done += 1


def heads():
    """Heads of requests that are too large, and bodies in pieces of a byte."""
    global done
    request = b"GET http://%s/ HTTP/1.1\r\n" % HOST.encode() + b"X: " + b"a" * 500000
    body = b"POST http://%s/upload HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\n\r\n" % (HOST.encode(), HOST.encode())
    pieces = b"1\r\nx\r\n" * 10000
    while going():
        for start, rest in ((request, b""), (body, pieces)):
            try:
                s = dial("127.0.0.1", 3128, True)
                s.sendall(start)
                for _ in range(8):
                    s.sendall(rest)
                s.close()
            except OSError:
                pass
            done += 1


def loris():
    """As many connections as there may be, each of which says one byte now and then."""
    global done
    held = []
    while going():
        while len(held) < 250:
            try:
                s = dial("127.0.0.1", 3128, True)
                s.sendall(b"GET http://%s/ HTTP/1.1\r\nX: " % HOST.encode())
                held.append(s)
            except OSError:
                break
        for s in list(held):
            try:
                s.send(b"a")
                done += 1
            except OSError:
                held.remove(s)


def busy():
    """Nothing but processor time: what the machine itself does to a neighbour."""
    global done
    while going():
        done += 1


def packets():
    """What the kernel's own handling of packets does to a neighbour: this process sends to itself, and reads now and then."""
    global done
    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:
        out, inside = [], []
        for _ in range(250):
            out.append(dial(*server.getsockname(), True))
            inside.append(server.accept()[0])
    while going():
        for s in out:
            s.send(b"a")
        done += 1
        if done % 100 == 0:
            for s in inside:
                s.recv(4096)


def spin():
    for _ in range(3):
        if os.fork() == 0:
            break
    busy()


globals()[KIND]()
print("done", done)

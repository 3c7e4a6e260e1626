"""Sends exact bytes and says what came back.

Standard input: a JSON list of {to: [host, port], bytes, connect?, tls?, sni?, alpn?, split?, timeout?, quiet?}, texts in Latin-1.
Standard output: a JSON list of answers in the same order; "error NAME" when nothing came. Eight at a time.

to: where TCP goes (a name or an address). connect: tunnels through that explicit proxy first. split: pauses after this text.
timeout, quiet: seconds of waiting for the first byte, and for more after it.
"""
import errno, json, socket, ssl, sys, time
from concurrent.futures import ThreadPoolExecutor


def rest(s):
    parts = []
    try:
        while True:
            part = s.recv(65536)
            if not part: break
            parts.append(part)
    except OSError: pass
    return b"".join(parts)


def exchange(job):
    host, port = job["to"]
    data = job["bytes"].encode("latin1")
    timeout, quiet = job.get("timeout", 6), job.get("quiet", 0.3)
    s = socket.create_connection((host, port), timeout=timeout)
    with s:
        connect = job.get("connect")
        if connect:
            s.sendall(("CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (connect, connect)).encode("latin1"))
            head = b""
            while b"\r\n\r\n" not in head:
                part = s.recv(4096)
                if not part: break
                head += part
            if b" 200 " not in head.split(b"\r\n")[0]: return head + rest(s)
        if job.get("tls"):
            c = ssl.create_default_context()
            c.check_hostname = False
            c.verify_mode = ssl.CERT_NONE
            if job.get("alpn"): c.set_alpn_protocols(job["alpn"].split(","))
            name = job.get("sni") or (connect or host).rsplit(":", 1)[0]
            s = c.wrap_socket(s, server_hostname=None if name == "none" else name)
        split = job.get("split")
        if split:
            at = data.index(split.encode("latin1")) + len(split)
            s.sendall(data[:at])
            time.sleep(0.2)
            data = data[at:]
        try: s.sendall(data)
        except OSError: pass  # It may have answered and closed before it read everything.
        answer = b""
        while True:
            s.settimeout(quiet if answer else timeout)
            try: part = s.recv(65536)
            except (socket.timeout, TimeoutError): return answer or b"error silence\n"
            except OSError:
                if answer: return answer
                raise
            if not part: return answer or b"error closed\n"
            answer += part


def attempt(job):
    try: return exchange(job).decode("latin1")
    except Exception as e: return "error %s\n" % (errno.errorcode.get(getattr(e, "errno", None) or 0) or type(e).__name__)


with ThreadPoolExecutor(8) as pool:
    json.dump(list(pool.map(attempt, json.load(sys.stdin))), sys.stdout)

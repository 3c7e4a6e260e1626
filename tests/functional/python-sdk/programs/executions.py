"""Commands: input, output, status, limits."""

import hashlib
import io
import random
import sys
import threading
import time

from openshell import ExecChunk, ExecResult, GatewayError, SandboxClient, SandboxError

from harness import Group, W, contains, equal, raised, refused, until
from shared import box, client, run, sh

group = Group()
slow = Group()
MEGABYTE = 1024 * 1024
# As long as the command runs, a process with this name and number is in the sandbox.
RUNNING = "ps -eo args 2>/dev/null || cat /proc/[0-9]*/cmdline | tr '\\0' ' '"


def noise(seed, size):
    """Prints bytes that the caller can compute as well: the same interpreter runs on both sides."""
    code = f"import random,sys;sys.{{}}.buffer.write(random.Random({seed}).randbytes({size}))"
    return code, random.Random(seed).randbytes(size)


def chunks(command, **options):
    """Bytes of each stream, and the final result."""
    output = {"stdout": b"", "stderr": b""}
    result = None
    for item in client().exec_stream(box(), command, **W, **options):
        assert result is None, "something after the result"
        if isinstance(item, ExecChunk):
            output[item.stream] += item.data
        else:
            result = item
    assert isinstance(result, ExecResult)
    return output, result


@group.check("both streams and the exact code, for 0, 1, 42 and 255")
def _():
    for code in (0, 1, 42, 255):
        result = sh(f"echo out; echo err >&2; exit {code}")
        equal((result.exit_code, result.stdout, result.stderr), (code, "out\n", "err\n"))


@group.check("signals are 128 + n, through a login shell and without one")
def _():
    for name, code in (("TERM", 143), ("KILL", 137), ("SEGV", 139)):
        for direct in (False, True):
            equal(sh(f"kill -{name} $$", no_login_shell=direct).exit_code, code)


@group.check("a program that is not there is 127, one that cannot run is 126, and both say so")
def _():
    for direct in (False, True):
        missing = run(["no-such-program"], no_login_shell=direct)
        equal(missing.exit_code, 127)
        contains(missing.stderr, "no-such-program: command not found")
    equal(run(["/etc/passwd"], no_login_shell=True).exit_code, 126)


@group.check("arguments arrive as they are: spaces, quotes, newlines, dollars, nothing, umlauts")
def _():
    words = ["a b", "'", '"', "a\nb", "$HOME `id` \\", "", "grüße", "*"]
    for direct in (False, True):
        result = run(["python3", "-c", "import sys; print(sys.argv[1:])", *words], no_login_shell=direct)
        equal(result.stdout, f"{words!r}\n")


@group.check("arguments up to 250 KB in all arrive, through a login shell and without one")
def _():
    words = [f"{number:04} {'ü' * 500}" for number in range(250)]
    code = "import hashlib,sys; print(hashlib.sha256('|'.join(sys.argv[1:]).encode()).hexdigest())"
    expected = hashlib.sha256("|".join(words).encode()).hexdigest()
    for direct in (False, True):
        equal(run(["python3", "-c", code, *words], no_login_shell=direct).stdout.strip(), expected)
    error = refused("INVALID_ARGUMENT", run, ["echo", *words, *words])
    equal([one.field for one in error.field_violations], ["command"])


@group.check("stdin: bytes with NUL and beyond ASCII, its end, and none at all")
def _():
    output, result = chunks(["cat"], stdin=b"a\0b\xff\n")
    equal((output["stdout"], result.exit_code), (b"a\0b\xff\n", 0))
    equal(run(["wc", "-c"]).stdout.strip(), "0")


@group.check("stdin of 3 MiB is read whole; a command that never reads it succeeds all the same")
def _():
    data = random.Random(1).randbytes(3 * MEGABYTE)
    equal(run(["sha256sum"], stdin=data).stdout.split()[0], hashlib.sha256(data).hexdigest())
    equal(run(["true"], stdin=data).exit_code, 0)


@group.check("stdin beyond the message limit of 4 MiB is RESOURCE_EXHAUSTED, and the next command works")
def _():
    for size in (4 * MEGABYTE, 5 * MEGABYTE):
        error = raised(GatewayError, run, ["cat"], stdin=bytes(size))
        assert error.code().name == "RESOURCE_EXHAUSTED", error
        contains(error.details(), str(4 * MEGABYTE))
    equal(run(["echo", "fine"]).stdout, "fine\n")


@group.check("env: every character that an environment can hold, over the spec's and the sandbox's own")
def _():
    values = {"A": "a b\t\"c\" 'd' $HOME\\", "PATH": "/somewhere:/usr/bin:/bin", "ÜMLAUT"[1:]: "größe", "EMPTY": ""}
    result = run(["python3", "-c", f"import os; print([os.environ[n] for n in {list(values)!r}])"], env=values)
    equal(result.stdout, f"{list(values.values())!r}\n")


@group.check("workdir: taken, from the home folder when relative, and one that is not there is told by name")
def _():
    equal(run(["pwd"], workdir="/tmp").stdout, "/tmp\n")
    equal(run(["pwd"]).stdout, "/sandbox\n")
    equal(run(["mkdir", "-p", "below/it"]).exit_code, 0)
    equal(run(["pwd"], workdir="below/it").stdout, "/sandbox/below/it\n")
    error = refused("FAILED_PRECONDITION", run, ["pwd"], workdir="/no/such/folder")
    contains(error.details(), "/no/such/folder")


@group.check("5 MB of output are exact to the byte")
def _():
    code, expected = noise(7, 5_000_000)
    output, result = chunks(["python3", "-c", code.format("stdout")])
    equal((len(output["stdout"]), output["stdout"] == expected), (5_000_000, True))
    equal((result.exit_code, output["stderr"]), (0, b""))


@group.check("5 MB on each stream at the same time, and the code after them")
def _():
    out, expected_out = noise(8, 5_000_000)
    err, expected_err = noise(9, 5_000_000)
    code = (
        f"import threading;t=threading.Thread(target=lambda:exec({out.format('stdout')!r}));t.start();"
        f"{err.format('stderr')};t.join();sys.exit(9)"
    )
    output, result = chunks(["python3", "-c", code])
    equal((output["stdout"] == expected_out, output["stderr"] == expected_err, result.exit_code), (True, True, 9))


@group.check("output that is not UTF-8: chunks are the bytes, the result has replacement characters")
def _():
    output, result = chunks(["printf", "a\\377\\303b"])
    equal((output["stdout"], result.stdout), (b"a\xff\xc3b", "a\ufffd\ufffdb"))


@group.check("a character split over two writes is whole in the result")
def _():
    equal(sh("printf '\\303'; sleep 0.2; printf '\\274'").stdout, "ü")


@group.check("exec_stream gives output while the command runs")
def _():
    script = "echo one; while [ ! -e ~/go ]; do sleep 0.02; done; rm ~/go; echo two"
    stream = client().exec_stream(box(), ["sh", "-c", script], **W)
    first = next(stream)
    equal((first.stream, first.data), ("stdout", b"one\n"))
    sh("touch ~/go")
    rest = list(stream)
    equal((rest[0].data, rest[-1].exit_code, rest[-1].stdout), (b"two\n", 0, "one\ntwo\n"))


@group.check("stream_output writes the bytes through")
def _():
    before = sys.stdout, sys.stderr
    written = io.BytesIO(), io.BytesIO()
    sys.stdout, sys.stderr = (io.TextIOWrapper(one) for one in written)
    try:
        result = sh("printf 'o\\377'; printf e >&2", stream_output=True)
        sys.stdout.flush(), sys.stderr.flush()
        equal([one.getvalue() for one in written], [b"o\xff", b"e"])
    finally:
        sys.stdout, sys.stderr = before
    equal(result.stderr, "e")


@group.check("an empty command is refused by the SDK, an empty program by the gateway")
def _():
    contains(str(raised(SandboxError, run, [])), "must not be empty")
    error = refused("INVALID_ARGUMENT", run, [""])
    equal([one.field for one in error.field_violations], ["command"])


@group.check("16 threads: every output and code is its own, over one channel and over one each")
def _():
    wrong = []

    def work(number, own):
        try:
            for turn in range(4):
                word = f"{number}-{turn}"
                result = own.exec(box(), ["sh", "-c", f"cat; echo {word} >&2; exit {number}"], stdin=word.encode(), **W)
                if (result.stdout, result.stderr, result.exit_code) != (word, f"{word}\n", number):
                    wrong.append(result)
        except Exception as error:
            wrong.append(error)

    for separate in (False, True):
        clients = [SandboxClient.from_active_cluster() if separate else client() for _ in range(16)]
        threads = [threading.Thread(target=work, args=(n, own)) for n, own in enumerate(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if separate:
            for own in clients:
                own.close()
    equal(wrong, [])


@slow.check("timeout_seconds: 124 from the gateway, with the output before it; the process is ended")
def _():
    started = time.monotonic()
    result = sh("echo before; exec sleep 7001", timeout_seconds=1)
    equal((result.exit_code, result.stdout), (124, "before\n"))
    assert 0.9 < time.monotonic() - started < 8
    until("the end of the command", lambda: "sleep 7001" not in sh(RUNNING).stdout)


@slow.check("a timeout that is not reached changes nothing; a command's own 124 is its own")
def _():
    equal(sh("exit 5", timeout_seconds=60).exit_code, 5)
    equal(sh("exit 124", timeout_seconds=60).exit_code, 124)


@slow.check("the client's deadline: DEADLINE_EXCEEDED, and the process is ended")
def _():
    with SandboxClient.from_active_cluster(timeout=1.5) as impatient:
        refused("DEADLINE_EXCEEDED", impatient.exec, box(), ["sh", "-c", "exec sleep 7002"], **W)
    until("the end of the command", lambda: "sleep 7002" not in sh(RUNNING).stdout)


@slow.check("a stream that its reader leaves ends the process")
def _():
    stream = client().exec_stream(box(), ["sh", "-c", "echo one; exec sleep 7003"], **W)
    equal(next(stream).data, b"one\n")
    contains(sh(RUNNING).stdout, "sleep 7003")
    stream.close()
    del stream
    until("the end of the command", lambda: "sleep 7003" not in sh(RUNNING).stdout)


@slow.check("a process left in the background, its output elsewhere, does not hold up the result")
def _():
    started = time.monotonic()
    result = sh("sleep 7004 >/dev/null 2>&1 & echo done")
    equal((result.exit_code, result.stdout), (0, "done\n"))
    assert time.monotonic() - started < 10, "waited for a process in the background"
    sh("pkill -f 'sleep 700[4]' || true")


@slow.check("a sandbox deleted under a command: the caller gets an error, not an invented code")
def _():
    from shared import idle

    made = client().create(spec=idle(), **W)
    client().wait_ready(made.name, **W)
    stream = client().exec_stream(made.name, ["sh", "-c", "echo one; exec sleep 7005"], **W)
    equal(next(stream).data, b"one\n")
    client().delete(made.name, **W)
    error = raised(GatewayError, list, stream)
    assert error.code().name in ("UNAVAILABLE", "NOT_FOUND", "FAILED_PRECONDITION", "ABORTED"), error.code()
    assert error.details(), "an error without a text"

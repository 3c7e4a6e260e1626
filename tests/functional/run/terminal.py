"""Runs a command in a pseudoterminal and plays a person in front of it.

    terminal.py ROWS COLUMNS STEPS COMMAND...

STEPS is a JSON list of {"see": text, "type": text} and {"see": text, "resize": [rows, columns]}: once the text was seen in
what came since the step before, the keys are pressed or the window is resized. Prints one JSON object: output, status (as a
shell gives it), whether every step was played, and the terminal's settings before and after as they differ.
"""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import sys
import termios
import time

LIMIT_SECONDS = 60


def resize(descriptor, rows, columns):
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


rows, columns, steps = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
child, terminal = pty.fork()
if child == 0:
    # The parent sets the size first.
    sys.stdin.readline()
    os.execvp(sys.argv[4], sys.argv[4:])
resize(terminal, rows, columns)
before = termios.tcgetattr(terminal)
os.write(terminal, b"\n")

output, seen, end, status = b"", 0, time.monotonic() + LIMIT_SECONDS, None
while time.monotonic() < end:
    ready, _, _ = select.select([terminal], [], [], 0.05)
    if ready:
        try:
            part = os.read(terminal, 65536)
        except OSError:
            part = b""
        output += part
        if not part:
            break
    while steps and (at := output.find(steps[0]["see"].encode(), seen)) >= 0:
        step = steps.pop(0)
        seen = at + len(step["see"].encode())
        # As a person does: after looking.
        time.sleep(0.1)
        if "type" in step:
            os.write(terminal, step["type"].encode())
        else:
            resize(terminal, *step["resize"])
    if not ready:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid == child:
            break
        status = None
if status is None:
    try:
        os.kill(child, signal.SIGHUP)
    except ProcessLookupError:
        pass
    _, status = os.waitpid(child, 0)
after = termios.tcgetattr(terminal)
code = os.waitstatus_to_exitcode(status)
print(
    json.dumps(
        {
            "output": output.decode(errors="replace"),
            "code": code if code >= 0 else 128 - code,
            "left": steps,
            "restored": before[:6] == after[:6],
        }
    )
)

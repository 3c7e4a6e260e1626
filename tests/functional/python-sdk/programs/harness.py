"""Named checks, run in one process. Each ends as one line of JSON on standard output; the vitest file makes a test of it."""

import importlib.util
import json
import os
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

W = {"workspace": "default"}
# Checks may put something else in place of sys.stdout.
_REPORT = os.fdopen(os.dup(1), "w", encoding="utf-8")
_REPORT_LOCK = threading.Lock()
_SDK = os.path.dirname(importlib.util.find_spec("openshell").origin) + os.sep
# Qualified names of the SDK's functions that checks called.
CALLED = set()


class Group:
    """Checks of one file, run in order. Groups run beside each other."""

    all = []

    def __init__(self, *, alone=False):
        self.alone = alone
        self.checks = []
        Group.all.append(self)

    def check(self, name):
        def register(function):
            self.checks.append((name, function))
            return function

        return register

    def run(self):
        for name, function in self.checks:
            started = time.monotonic()
            error = None
            try:
                function()
            except BaseException:
                error = traceback.format_exc()
            report(name=name, error=error, ms=round((time.monotonic() - started) * 1000))


def report(**fields):
    with _REPORT_LOCK:
        _REPORT.write(json.dumps(fields) + "\n")
        _REPORT.flush()


def equal(actual, expected):
    if actual != expected:
        raise AssertionError(f"{actual!r}\nis not\n{expected!r}")


def contains(text, part):
    if part not in text:
        raise AssertionError(f"{text!r}\ndoes not contain\n{part!r}")


def raised(kind, function, *args, **kwargs):
    """The exception of that kind that the call raises."""
    try:
        result = function(*args, **kwargs)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}, but {result!r}")


def refused(code, function, *args, **kwargs):
    """The GatewayError with that status code that the call raises."""
    from openshell import GatewayError

    error = raised(GatewayError, function, *args, **kwargs)
    equal(error.code().name, code)
    return error


def until(what, attempt, *, seconds=10.0):
    """Repeats until the attempt gives something true; fails naming what was waited for."""
    deadline = time.monotonic() + seconds
    while True:
        result = attempt()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s for: {what}")
        time.sleep(0.02)


def notes_calls(group_run):
    """Runs the checks of a group noting which functions of the SDK its thread calls."""

    def run(self):
        def profile(frame, event, _argument):
            if event == "call" and frame.f_code.co_filename.startswith(_SDK):
                CALLED.add(frame.f_code.co_qualname)

        sys.setprofile(profile)
        try:
            group_run(self)
        finally:
            sys.setprofile(None)

    return run


Group.run = notes_calls(Group.run)


def run_all():
    beside = [group for group in Group.all if not group.alone]
    with ThreadPoolExecutor(len(beside)) as pool:
        for done in [pool.submit(group.run) for group in beside]:
            done.result()
    for group in Group.all:
        if group.alone:
            group.run()

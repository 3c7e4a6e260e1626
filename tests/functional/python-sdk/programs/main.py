"""Runs every check against the gateway that XDG_CONFIG_HOME leads to."""

import discovery  # noqa: F401
import errors  # noqa: F401
import executions  # noqa: F401
import functions  # noqa: F401
import lifecycle  # noqa: F401
import lists  # noqa: F401
import page  # noqa: F401
import providers  # noqa: F401
import restart  # noqa: F401
import surface  # noqa: F401

import harness

harness.run_all()
harness.report(called=sorted(harness.CALLED))

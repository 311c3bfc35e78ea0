"""Loaded by Python at the start of each worker of a soak: shift its clock, or plant a bug."""

import os
import time

_skew = float(os.environ.get("SOAK_CLOCK_SKEW") or 0)
if _skew:
    _time, _time_ns = time.time, time.time_ns
    time.time = lambda: _time() + _skew
    time.time_ns = lambda: _time_ns() + int(_skew * 10**9)

if os.environ.get("SOAK_PLANTED_BUG"):
    from tests.soak import bugs

    bugs.plant(os.environ["SOAK_PLANTED_BUG"])

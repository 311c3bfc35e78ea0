"""All workloads by name: those of every run, those that take minutes, and those that need a network."""

from argparse import Namespace
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeAlias

from benchmarks.backlogs import backlogs, workers
from benchmarks.churn import churn
from benchmarks.conditions import conditions
from benchmarks.counters import Figure
from benchmarks.drain import drain
from benchmarks.history import history
from benchmarks.inbox import inbox
from benchmarks.inbox_peer import inbox_peer
from benchmarks.keys import keys
from benchmarks.looks import looks
from benchmarks.memory import memory
from benchmarks.stage import Stage
from benchmarks.steady import steady
from benchmarks.sweep import sweep

Workload: TypeAlias = Callable[[Stage], Awaitable[dict[str, Figure]]]
"""One round: the figures of each program."""


def workloads(options: Namespace) -> Mapping[str, Workload]:
    """Return the workloads of every run."""
    o = options
    return {
        "drain, no keys": partial(drain, count=o.events, per_key=0),
        "drain, 10 to a key": partial(drain, count=o.events, per_key=10),
        "steady rate": partial(steady, per_second=o.rate, seconds=o.seconds, idle_seconds=o.idle),
        "inbox, FastAPI": partial(inbox, count=o.messages),
        "inbox, 200 in flight": partial(inbox, count=o.messages, in_flight=200),
        "inbox, batches": partial(inbox, count=o.messages, in_flight=200, batches=True),
        "inbox, bare handler": partial(inbox, count=o.messages, bare=True),
    }


def long_workloads(options: Namespace) -> Mapping[str, Workload]:
    """Return the workloads that take minutes, for ``--all``."""
    o = options
    return {
        "steady rate sweep": partial(sweep, rates=o.rates, seconds=o.seconds, idle_seconds=0.0),
        "drain, history": partial(history, count=o.events, published=o.history),
        "drain, conditions": partial(conditions, count=o.events),
        "drain, keys": partial(keys, count=o.events),
        "backlogs, no keys": partial(backlogs, counts=o.backlogs, per_key=0),
        "backlogs, 10 to a key": partial(backlogs, counts=o.backlogs, per_key=10),
        "looks": partial(looks, published=o.history, times=o.looks),
        "memory": partial(memory, count=o.memory),
        "workers, no keys": partial(workers, count=o.events, per_key=0),
        "workers, 10 to a key": partial(workers, count=o.events, per_key=10),
        "churn": partial(churn, count=o.events, cycles=max(1, o.churn // o.events)),
    }


def network_workloads(options: Namespace) -> Mapping[str, Workload]:
    """Return the workloads that install programs of others, for ``--workload``."""
    work = options.work.expanduser().resolve()
    return {"inbox, FastStream": partial(inbox_peer, count=options.messages, work=work)}

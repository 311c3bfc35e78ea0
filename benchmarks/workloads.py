"""All workloads by name: those of every run, those that take minutes, and those that need a network."""

from argparse import Namespace
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from benchmarks.backlogs import backlogs
from benchmarks.churn import churn
from benchmarks.conditions import conditions
from benchmarks.counters import Figure
from benchmarks.drain import drain
from benchmarks.history import history
from benchmarks.inbox import inbox
from benchmarks.inbox_peer import inbox_peer
from benchmarks.looks import looks
from benchmarks.memory import memory
from benchmarks.stage import Stage
from benchmarks.steady import steady
from benchmarks.sweep import sweep
from benchmarks.workers import workers

Workload: TypeAlias = Callable[[Stage], Awaitable[dict[str, Figure]]]
"""One round: the figures of each program."""


def workloads(options: Namespace) -> Mapping[str, Workload]:
    """Return the workloads of every run."""
    return {
        "drain, no keys": lambda stage: drain(stage, count=options.events, per_key=0),
        "drain, 10 to a key": lambda stage: drain(stage, count=options.events, per_key=10),
        "steady rate": lambda stage: steady(
            stage, per_second=options.rate, seconds=options.seconds, idle_seconds=options.idle
        ),
        "inbox, FastAPI": lambda stage: inbox(
            stage, count=options.messages, handler_url=f"{stage.handler.url}/handle"
        ),
        "inbox, 200 in flight": lambda stage: inbox(
            stage, count=options.messages, handler_url=f"{stage.handler.url}/handle", in_flight=200
        ),
        "inbox, batches": lambda stage: inbox(
            stage,
            count=options.messages,
            handler_url=f"{stage.handler.url}/handle",
            in_flight=200,
            batch_url=f"{stage.handler.url}/handle-batch",
        ),
        "inbox, bare handler": lambda stage: inbox(
            stage, count=options.messages, handler_url=f"{stage.bare.url}/handle"
        ),
    }


def long_workloads(options: Namespace) -> Mapping[str, Workload]:
    """Return the workloads that take minutes, for ``--all``."""
    return {
        "steady rate sweep": lambda stage: sweep(
            stage, rates=options.rates, seconds=options.seconds, idle_seconds=0.0
        ),
        "drain, history": lambda stage: history(stage, count=options.events, published=options.history),
        "drain, conditions": lambda stage: conditions(stage, count=options.events),
        "backlogs, no keys": lambda stage: backlogs(stage, counts=options.backlogs, per_key=0),
        "backlogs, 10 to a key": lambda stage: backlogs(stage, counts=options.backlogs, per_key=10),
        "looks": lambda stage: looks(stage, published=options.history, times=options.looks),
        "memory": lambda stage: memory(stage, count=options.memory),
        "workers, no keys": lambda stage: workers(stage, count=options.events, per_key=0),
        "workers, 10 to a key": lambda stage: workers(stage, count=options.events, per_key=10),
        "churn": lambda stage: churn(
            stage, count=options.events, cycles=max(1, options.churn // options.events)
        ),
    }


def network_workloads(options: Namespace) -> Mapping[str, Workload]:
    """Return the workloads that install programs of others, for ``--workload``."""
    work = options.work.expanduser().resolve()
    return {"inbox, FastStream": lambda stage: inbox_peer(stage, count=options.messages, work=work)}

"""A short soak passes, and its checks notice planted bugs and altered evidence."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from sea_mq_worker.telemetry.events import METRICS
from tests.soak.evidence import CHECKS, SERIES, Evidence, judge
from tests.soak.faults import KINDS, draw
from tests.soak.run import Soaked, soak

SEED = 47
SECONDS = 25.0
CONTROL_SECONDS = 15.0


def test_a_seed_repeats_a_plan() -> None:
    assert draw(SEED, 600) == draw(SEED, 600)
    assert draw(SEED, 600) != draw(SEED + 1, 600)


def test_ten_minutes_have_every_kind_of_fault_and_at_least_150() -> None:
    plan = draw(SEED, 600)
    assert {fault.kind for fault in plan} == set(KINDS)
    assert len(plan) >= 150
    assert all(fault.end <= 600 for fault in plan)


def test_the_soak_reads_only_series_that_the_worker_has() -> None:
    assert {series.partition("{")[0] for series in SERIES.values()} <= {metric.name for metric in METRICS}


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(300)
async def test_a_soak_loses_and_doubles_nothing_under_faults(tmp_path: Path) -> None:
    soaked = await soak(seed=SEED, seconds=SECONDS, folder=tmp_path)
    assert soaked.passed, soaked.problems
    assert len(soaked.evidence.faults) >= 10
    assert unnoticed(soaked) == []


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(300)
async def test_a_planted_bug_fails_the_soak(tmp_path: Path) -> None:
    soaked = await soak(
        seed=SEED,
        seconds=CONTROL_SECONDS,
        folder=tmp_path,
        bug="ack-before-handling",
        only=frozenset({"worker.kill", "handler.hangs"}),
        drain_seconds=6.0,
    )
    assert {"A0", "A6"} <= soaked.problems.keys(), soaked.problems


def unnoticed(soaked: Soaked) -> list[str]:
    """Alter the evidence of a good run in one way at a time; return the changes that no check notices."""
    assert not any(check.offenders for check in judge(soaked.evidence))
    missed = []
    for name, spoil in SPOILT.items():
        check = name.partition(":")[0]
        [verdict] = judge(spoil(soaked.evidence), {check: CHECKS[check]})
        if not verdict.offenders:
            missed.append(name)
    return missed


def _published(e: Evidence) -> Iterator[str]:
    return (event_id for event_id, row in e.outbox.items() if row["state"] == "PUBLISHED")


def _processed(e: Evidence) -> Iterator[str]:
    return (message_id for message_id, row in e.inbox.items() if row["processed_at"] is not None)


def _without_event(e: Evidence) -> Evidence:
    gone = next(_published(e))
    return replace(e, outbox={event_id: row for event_id, row in e.outbox.items() if event_id != gone})


def _with_state(e: Evidence) -> Evidence:
    changed = next(_published(e))
    return replace(e, outbox={**e.outbox, changed: {**e.outbox[changed], "state": "DEAD"}})


def _reversed(e: Evidence) -> Evidence:
    last = e.events[-1].seq
    return replace(e, events=[message._replace(seq=last - message.seq) for message in e.events])


def _with_late_call(e: Evidence) -> Evidence:
    late = next(_processed(e))
    call = next(call for call in e.heard if call.id == late)
    after = e.inbox[late]["processed_at"] + timedelta(days=1)
    return replace(e, heard=[*e.heard, replace(call, at=after.timestamp())], faults=[])


def _with_exit(e: Evidence) -> Evidence:
    life = e.lives[0]
    failed = replace(life, signal="", ended=life.began + 1, code=1)
    return replace(e, lives=[failed, *e.lives[1:]])


def _with_log(e: Evidence) -> Evidence:
    name = next(iter(e.logs))
    return replace(e, logs={**e.logs, name: e.logs[name] + "canary-payload-91c2"})


SPOILT: dict[str, Callable[[Evidence], Evidence]] = {
    "A1: a committed event is gone": _without_event,
    "A2: a good event is dead": _with_state,
    "A3: the stream lost a message": lambda e: replace(e, events=e.events[:-1]),
    "A3: the stream has a copy": lambda e: replace(e, events=[*e.events, e.events[-1]]),
    "A4: a body is another": lambda e: replace(e, events=[e.events[0]._replace(body=b"{}"), *e.events[1:]]),
    "A4: the handler got another": lambda e: replace(e, heard=[replace(e.heard[0], digest=""), *e.heard[1:]]),
    "A5: keys run backwards": _reversed,
    "A6: a message is not processed": lambda e: replace(e, inbox={}),
    "A6: a message waits": lambda e: replace(e, consumer={**e.consumer, "num_ack_pending": 1}),
    "A7: an effect happened twice": lambda e: replace(e, effects=dict.fromkeys(e.effects, 2)),
    "A7: a call came late": _with_late_call,
    "A8: a dead letter is there twice": lambda e: replace(e, letters=[*e.letters, e.letters[0]]),
    "A8: a good message is dead": lambda e: replace(
        e, letters=[*e.letters, e.letters[0]._replace(headers={**e.letters[0].headers, "Dlq-Reason": "?"})]
    ),
    "A9: a session idles": lambda e: replace(e, idle_in_transaction=[{"usename": "w1", "seconds": 2.0}]),
    "A9: a log contains a payload": _with_log,
    "A10: a worker failed": _with_exit,
}
"""Changes of the evidence, by the check that must notice and the defect."""

"""The outbox's contract as a state machine: any calls in any order, over the twin and over PostgreSQL."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sea_mq_worker.adapters.postgres.connection import connect_pool
from sea_mq_worker.domain.events import NOTHING_CLAIMED, Claim
from tests.support.outboxes import MemoryWorld, PostgresWorld, World, buried, postponed, published, released
from tests.support.servers import Database

FAILURES_MAX = 3
FAR_SECONDS = 1000.0
_EMPTY = """
    SET session_replication_role = replica;  -- the schema's own triggers forbid it
    TRUNCATE outbox_events;
    SET session_replication_role = origin;
"""
_TRIES = 3
"""A claim may overlook what another worker has just given back, but not again and again."""


@dataclass(slots=True)
class Model:
    """What an event should be."""

    key: str | None
    due: bool
    state: str = "PENDING"
    attempts: int = 0
    failures: int = 0
    failed_before: bool = False
    claim: Claim | None = None


class OutboxMachine(RuleBasedStateMachine):
    """Drives one store and a model of it."""

    claims: Bundle[Claim] = Bundle("claims")

    def __init__(self, world: World, run: Callable[[Any], Any], *, hold_dead_keys: bool) -> None:
        super().__init__()
        self.world = world
        self.run = run
        self.hold_dead_keys = hold_dead_keys
        self.events: dict[str, Model] = {}
        options = {"hold_dead_keys": hold_dead_keys, "failures_max": FAILURES_MAX}
        self.lanes = {
            (worker, ordered): world.relay(worker, ordered=ordered, **options)
            for worker in ("w1", "w2")
            for ordered in (False, True)
        }
        self.reaper = world.relay("w3", lease_seconds=0.0, failures_max=FAILURES_MAX)

    @rule(key=st.sampled_from([None, "a", "b"]), due=st.booleans())
    def insert(self, key: str | None, due: bool) -> None:
        delay = 0.0 if due else FAR_SECONDS
        event_id = self.run(self.world.add(key=key, delay_seconds=delay))
        self.events[event_id] = Model(key=key, due=due)

    @rule(
        target=claims,
        worker=st.sampled_from(["w1", "w2"]),
        ordered=st.booleans(),
        batch_max=st.integers(1, 4),
    )
    def claim(self, worker: str, ordered: bool, batch_max: int) -> Any:
        """Only what is due, in lane and in order; nothing only where there is nothing."""
        runs = self._runs(ordered=ordered)
        tries = _TRIES if any(runs) else 1
        claim = NOTHING_CLAIMED
        while tries and not claim.events:
            claim = self.run(self.lanes[worker, ordered].find_unpublished(batch_max=batch_max))
            tries -= 1
        claimed = [event.id for event in claim.events]
        assert len(claimed) <= batch_max
        assert bool(claimed) == any(runs)
        for run in runs:
            mine = [event_id for event_id in claimed if event_id in run]
            assert mine == (run[: len(mine)] if ordered else [i for i in run if i in mine])
            claimed = [event_id for event_id in claimed if event_id not in run]
        assert claimed == []
        for event in claim.events:
            model = self.events[event.id]
            model.state, model.claim = "CLAIMED", claim
            model.attempts += 1
            assert (event.attempts, event.failures) == (model.attempts, model.failures)
        return claim if claim.events else multiple()

    @rule(claim=claims)
    def publish(self, claim: Claim) -> None:
        mine = self._mine(claim)
        assert self.run(self._lane(claim).mark_published(claim, published(claim))) == set(mine)
        self._end(mine, "PUBLISHED")

    @rule(claim=claims, failed=st.booleans(), due=st.booleans())
    def postpone(self, claim: Claim, failed: bool, due: bool) -> None:
        mine = self._mine(claim)
        verdicts = postponed(claim, delay_seconds=0.0 if due else FAR_SECONDS, failed=failed)
        assert self.run(self._lane(claim).increment_attempts(claim, verdicts)) == set(mine)
        self._end(mine, "PENDING")
        for event_id in mine:
            model = self.events[event_id]
            model.failures += failed
            model.due, model.failed_before = due, True

    @rule(claim=claims)
    def bury(self, claim: Claim) -> None:
        mine = self._mine(claim)
        assert self.run(self._lane(claim).increment_attempts(claim, buried(claim))) == set(mine)
        self._end(mine, "DEAD")
        for event_id in mine:
            self.events[event_id].failures += 1

    @rule(claim=consumes(claims))
    def release(self, claim: Claim) -> None:
        mine = self._mine(claim)
        assert self.run(self._lane(claim).release(claim, released(claim))) == set(mine)
        self._end(mine, "PENDING")

    @rule()
    def expire(self) -> None:
        """Every lease runs out; each costs a failure."""
        held = [event_id for event_id, model in self.events.items() if model.state == "CLAIMED"]
        self.run(self.world.pass_time(0.002))
        assert self.run(self.reaper.reap()).leases == len(held)
        self._end(held, "PENDING")
        for event_id in held:
            model = self.events[event_id]
            model.failures += 1
            model.failed_before = True
            model.state = "DEAD" if model.failures >= FAILURES_MAX else "PENDING"
            self._make_due(event_id)

    @precondition(lambda self: self.events)
    @rule(nth=st.integers(0, 99))
    def make_due(self, nth: int) -> None:
        self._make_due(list(self.events)[nth % len(self.events)])

    @precondition(lambda self: any(model.state in {"PUBLISHED", "DEAD"} for model in self.events.values()))
    @rule(nth=st.integers(0, 99))
    def replay(self, nth: int) -> None:
        ended = [key for key, model in self.events.items() if model.state in {"PUBLISHED", "DEAD"}]
        event_id = ended[nth % len(ended)]
        self.run(self.world.replay(event_id))
        self.events[event_id] = Model(key=self.events[event_id].key, due=True)

    @invariant()
    def the_store_has_what_the_model_has(self) -> None:
        for event_id, model in self.events.items():
            row = self.run(self.world.row(event_id))
            assert (row.state, row.attempts, row.failures) == (model.state, model.attempts, model.failures)
            assert row.claimed == (model.state == "CLAIMED")
            assert row.published == (model.state == "PUBLISHED")

    def _make_due(self, event_id: str) -> None:
        model = self.events[event_id]
        if model.state == "PENDING":
            self.run(self.world.make_due(event_id))
            model.due = True

    def _lane(self, claim: Claim) -> Any:
        return self.lanes["w1", claim.events[0].ordering_key is not None]

    def _mine(self, claim: Claim) -> list[str]:
        """Return the events that a claim still holds."""
        held = [event.id for event in claim.events]
        return [event_id for event_id in held if self.events[event_id].claim is claim]

    def _end(self, event_ids: list[str], state: str) -> None:
        for event_id in event_ids:
            self.events[event_id].state, self.events[event_id].claim = state, None

    def _runs(self, *, ordered: bool) -> list[list[str]]:
        """Return what may be claimed: each key's run from its head, or all that is due of the other lane."""
        if not ordered:
            return [[i for i, model in self.events.items() if model.key is None and _ready(model)]]
        return [self._run_of(key) for key in ("a", "b")]

    def _run_of(self, key: str) -> list[str]:
        run: list[str] = []
        for event_id, model in self.events.items():
            over = model.state == "PUBLISHED" or (model.state == "DEAD" and not self.hold_dead_keys)
            if model.key != key or over:
                continue
            if not _ready(model):
                break
            run.append(event_id)
            if model.failed_before:
                break
        return run


def _ready(model: Model) -> bool:
    return model.state == "PENDING" and model.due


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.mark.parametrize("hold_dead_keys", [False, True])
def test_the_in_memory_fake_keeps_the_contract(runner: asyncio.Runner, hold_dead_keys: bool) -> None:
    def machine() -> OutboxMachine:
        return OutboxMachine(MemoryWorld(), runner.run, hold_dead_keys=hold_dead_keys)

    run_state_machine_as_test(machine, settings=_settings(40, steps=25))  # type: ignore[arg-type]


@pytest.mark.parametrize("hold_dead_keys", [False, True])
def test_postgresql_keeps_the_contract(
    runner: asyncio.Runner,
    database: Database,
    hold_dead_keys: bool,
) -> None:
    pool = runner.run(_connect(database))

    def machine() -> OutboxMachine:
        runner.run(pool.execute(_EMPTY))
        return OutboxMachine(PostgresWorld(pool), runner.run, hold_dead_keys=hold_dead_keys)

    try:
        run_state_machine_as_test(machine, settings=_settings(8, steps=20))  # type: ignore[arg-type]
    finally:
        runner.run(pool.close())


async def _connect(database: Database) -> Any:
    return await connect_pool(
        database.dsn,
        schema="public",
        size_max=1,
        application_name="test",
        statement_timeout_seconds=10,
        connect_timeout_seconds=10,
    )


def _settings(examples: int, *, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )

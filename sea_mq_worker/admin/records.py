"""Records of ``/status``: their field names are the keys of the JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from sea_mq_worker.admin.activity import ErrorGroup, Percentiles, RecentEvent
from sea_mq_worker.operators.records import Overview

Offers: TypeAlias = Literal["all", "numbers"]


class Level(StrEnum):
    """Urgency; the page shows each level in its own colour."""

    GOOD = "good"
    IDLE = "idle"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One reason for not being ready; ``since`` is in seconds since 1970."""

    part: str
    reason: str
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSummary:
    """``state`` is a word or two, ``text`` a sentence, ``next_steps`` are commands; ``since``: from 1970."""

    level: Level
    state: str
    text: str
    causes: Sequence[Cause] = ()
    next_steps: Sequence[str] = ()
    since: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """The constant part of the status.

    Attributes:
        offers: "numbers" without a token; "all" includes the operator API.
        depth_max: highest depth that the worker counts to.
    """

    worker: str
    context: str
    version: str
    offers: Offers
    depth_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Totals since the start, and rates per second of the last seconds, both by name."""

    totals: Mapping[str, float]
    per_second: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Sample of one side's table.

    Attributes:
        depth: events or messages that are due.
        oldest_seconds: age of the oldest of them.
        dead: DEAD events, or dead-lettered messages that no operator closed.
        scheduled: events that are not due yet; ``depth`` excludes them.
    """

    depth: int
    oldest_seconds: float
    dead: int
    scheduled: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSample:
    """State of a durable consumer; with ``error``, the numbers are the last known ones, or absent.

    ``oldest_seconds``: age of the oldest message of ``pending``, if the stream can be read.
    """

    stream: str
    durable: str
    pending: int | None = None
    ack_pending: int | None = None
    ack_pending_max: int | None = None
    redelivered: int | None = None
    oldest_seconds: float | None = None
    paused_seconds: float = 0.0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SideStatus:
    """State of one side.

    Attributes:
        undelivered: messages that the consumers have not delivered yet.
        at: time of ``sample``, in seconds since 1970.
    """

    sample: Sample | None
    undelivered: int
    at: float | None
    per_second: float
    latency: Percentiles | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(WorkerInfo):
    """State of the worker; ``now`` and ``started`` are in seconds since 1970."""

    totals: Mapping[str, float]
    now: float
    started: float
    health: HealthSummary
    sides: Mapping[str, SideStatus]
    consumers: Sequence[ConsumerSample]
    overview: Overview | None
    slow_types: Sequence[str]
    errors: Sequence[ErrorGroup]
    activity: Sequence[RecentEvent]

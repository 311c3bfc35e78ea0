"""Closed unions: outcomes of a publish, an event, a handler call and a received message.

Every ``match`` on one ends with ``assert_never``, so a new outcome is a type error until each loop decides on
it. The outcomes of nearly every event are tuples, created in half the time of a frozen dataclass.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from sea_mq_worker.domain.events import OutboxEvent

# --- outcome of a publish attempt


class Stored(NamedTuple):
    """The stream has it. ``duplicate``: it already knew the id, so ``seq`` is an earlier copy's.

    ``seconds_ago``: how old that copy is, where it is the one of an earlier lifecycle and that is known.
    """

    stream: str
    seq: int
    duplicate: bool = False
    seconds_ago: float | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """This message can never be stored as it is (too large, a bad header): permanent."""

    reason: str


@dataclass(frozen=True, slots=True)
class FailedTransiently:
    """The broker refused this message now but may accept it later: transient, costs a failure."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """No response, or an unclear one: possibly published. Retry under the same id; costs no failure.

    ``answered``: the server did respond, so the link works and another message may be stored.
    ``refused``: the stream or a right is in the way, and only a message that is stored proves the end of it.
    """

    reason: str
    answered: bool = False
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Unsent:
    """It was not sent: the connection was down or the deadline had passed before its turn."""

    reason: str


PublishOutcome: TypeAlias = Stored | Rejected | FailedTransiently | Unknown | Unsent

# --- verdict on a claimed event


class Published(NamedTuple):
    """CLAIMED -> PUBLISHED."""

    event: OutboxEvent
    stored: Stored


@dataclass(frozen=True, slots=True)
class Postponed:
    """CLAIMED -> PENDING, due again after ``delay_seconds``; ``failed``: it costs a failure."""

    event: OutboxEvent
    error: str
    delay_seconds: float
    failed: bool


@dataclass(frozen=True, slots=True)
class Released:
    """CLAIMED -> PENDING without an attempt, due at once."""

    event: OutboxEvent


@dataclass(frozen=True, slots=True)
class Died:
    """CLAIMED -> DEAD."""

    event: OutboxEvent
    error: str


Verdict: TypeAlias = Published | Postponed | Released | Died


class Reaped(NamedTuple):
    """``leases`` that were ended, and events ``brought_forward`` after the clock was set back."""

    leases: int
    brought_forward: int


# --- result of a handler call


@dataclass(frozen=True, slots=True)
class Accepted:
    """200, 409 or a status that the settings add: the effect is there (POL-047-005)."""

    status: int


@dataclass(frozen=True, slots=True)
class Poison:
    """422: the handler can never accept this message (POL-047-006)."""

    error: str


@dataclass(frozen=True, slots=True)
class Retry:
    """5xx, time-out or any other answer (POL-047-007); ``after_seconds``: no sooner, as the handler asked.

    ``answered``: there was a whole answer, so the handler can be reached. ``about``: more probable cause.
    """

    error: str
    after_seconds: float = 0.0
    answered: bool = True
    about: Literal["", "deployment", "size"] = ""


@dataclass(frozen=True, slots=True)
class NotDelivered:
    """The handler was unreachable: it has not seen the message, and the next call would fail too."""

    error: str


@dataclass(frozen=True, slots=True)
class BatchFailed:
    """The message's batch failed, and which message is the cause is unknown: call again at once.

    ``batch_max``: size of the next batch, half of the failed one; ``answered``: as in ``Retry``.
    """

    error: str
    batch_max: int
    answered: bool


HandlerResult: TypeAlias = Accepted | Poison | Retry | NotDelivered | BatchFailed

# --- outcome of a received message


@dataclass(frozen=True, slots=True)
class Processed:
    """The effect is there: mark, then ACK."""

    status: int


@dataclass(frozen=True, slots=True)
class GivenBack:
    """No effect: record the error, then NAK with a delay; ``counted``: it costs an attempt.

    ``event_type``: a slow type; when its slow pace ends, the message comes sooner, but not before
    ``least_seconds``.
    """

    error: str
    delay_seconds: float
    event_type: str = ""
    least_seconds: float = 0.0
    counted: bool = False


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """The dead-letter stream has it and the inbox knows: ACK."""


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """Another worker has the message: send nothing, because that worker settles it."""


HandlingOutcome: TypeAlias = Processed | GivenBack | DeadLettered | LeaseLost

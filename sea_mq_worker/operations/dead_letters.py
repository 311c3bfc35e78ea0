"""Groups of dead letters, and the outcome of a change of one."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, islice

from sea_mq_worker.domain.dead_letter_records import DeadLetterEntry, DeadLetterFilter
from sea_mq_worker.domain.dead_letters import Reason
from sea_mq_worker.domain.error_fingerprint import mask_ids
from sea_mq_worker.domain.errors import ContractError
from sea_mq_worker.domain.inbound import parse_message
from sea_mq_worker.domain.messages import HandlerRequest, InboundMessage
from sea_mq_worker.domain.read_models import Group
from sea_mq_worker.ports.operations import DeadLetterStore


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterOutcome:
    """Outcome for one dead letter.

    ``done``: the change succeeded and the dead letter is removed. ``skipped``: no redrive can handle it.
    """

    seq: int
    message_id: str
    done: bool
    text: str
    skipped: bool = False


def can_be_handled(entry: DeadLetterEntry) -> bool:
    """Return whether a redrive would call the handler, as far as the dead letter shows.

    Its content decides and not its reason: a newer worker understands more messages.
    """
    if entry.body_omitted:
        return entry.reason in {Reason.REJECTED, Reason.EXHAUSTED}
    request = parse_message(entry.restored())
    return isinstance(request, HandlerRequest) and request.message_id == entry.message_id


async def dead_letter_groups(
    stream: DeadLetterStore, which: DeadLetterFilter, *, read_max: int, groups_max: int
) -> tuple[int, Sequence[Group]]:
    """Count dead letters by reason, subject, consumer and detail, most frequent first.

    Returns the number of dead letters read, and the groups. Numbers in details do not matter.
    """
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], DeadLetterEntry] = {}
    read = 0
    async for entry in stream.walk(which, limit=read_max):
        read += 1
        for name in _names(entry):
            counts[name] += 1
            first.setdefault(name, entry)
    groups = [
        Group(kind=kind, name=name, count=count, oldest_at=first[kind, name].stored_at)
        for (kind, name), count in sorted(counts.items(), key=lambda item: (item[0][0], -item[1], item[0]))
    ]
    by_kind = groupby(groups, key=lambda group: group.kind)
    return read, [group for _, same in by_kind for group in islice(same, groups_max)]


async def original_message(store: DeadLetterStore, entry: DeadLetterEntry) -> InboundMessage:
    """Restore the message that was dead-lettered; read it from its stream if a part was omitted.

    Raises:
        ContractError: its body was omitted, and its stream does not have it.
    """
    if entry.body_omitted:
        return await store.source(entry)
    if entry.headers_omitted:
        with suppress(ContractError):
            source = await store.source(entry)
            if source.payload == entry.payload:  # a stream made anew has another message there
                return source
    return entry.restored()


def _names(entry: DeadLetterEntry) -> Sequence[tuple[str, str]]:
    return [
        ("reason", entry.reason),
        ("subject", entry.original_subject),
        ("consumer", entry.consumer),
        ("detail", mask_ids(entry.detail)),
    ]

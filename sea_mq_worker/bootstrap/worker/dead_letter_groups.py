"""Dead letters by groups, for the page: counted, and sent again or deleted a few at a time."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sea_mq_worker.adapters.nats.manage.dead_letters import LetterFilter, NatsDeadLetters
from sea_mq_worker.admin.operator_api import DeadLetterGroup
from sea_mq_worker.operations.broker import dead_letters
from sea_mq_worker.operations.dead_letters import DeadLetterOutcome
from sea_mq_worker.operations.purge import purger
from sea_mq_worker.operations.redrive import redriver
from sea_mq_worker.settings import Settings

READ_MAX = 2000
"""Dead letters that are looked at for one answer."""
_AT_ONCE_MAX = 50
_SECONDS = 3.0
"""After this time no letter is begun, so that the page can show the progress."""
_FAILURES_MAX = 10
"""After this number of letters without an effect the handler is taken for not mended."""


@dataclass(slots=True, kw_only=True)
class _Counted:
    """A group, as the list shows it."""

    reason: str
    subject: str
    detail: str
    oldest_at: Any
    count: int = 0
    last: int = 0


async def letter_groups(settings: Settings) -> Mapping[str, Any]:
    """Count the oldest by reason and subject, the most frequent first; ``more``: there are others behind."""
    groups: dict[tuple[str, str], _Counted] = {}
    read = 0
    async with dead_letters(settings) as letters:
        async for one in letters.walk(read_max=READ_MAX):
            read += 1
            key = (one.reason, one.original_subject)
            group = groups.get(key) or _Counted(
                reason=one.reason, subject=one.original_subject, detail=one.detail, oldest_at=one.stored_at
            )
            group.count, group.last = group.count + 1, one.seq
            groups[key] = group
    items = sorted(groups.values(), key=lambda group: -group.count)
    return {"items": [asdict(group) for group in items], "more": read == READ_MAX}


async def redrive_some(
    settings: Settings, group: DeadLetterGroup, *, actor: str, reason: str
) -> Mapping[str, Any]:
    """Hand the next ones to the handler; where one has no effect, it stays."""
    async with redriver(settings) as again:

        async def one(seq: int) -> DeadLetterOutcome:
            return await again.redrive(seq, actor=actor, reason=reason)

        return await _each(again.letters, group, one)


async def purge_some(
    settings: Settings, group: DeadLetterGroup, *, actor: str, reason: str
) -> Mapping[str, Any]:
    """Delete the next ones for good, and note it in the audit."""
    async with (
        purger(settings, actor=actor, reason=reason) as tool,
        tool.recorded(asdict(group)) as delete,
    ):
        return await _each(tool.letters, group, delete)


async def _each(
    letters: NatsDeadLetters, group: DeadLetterGroup, do: Callable[[int], Awaitable[DeadLetterOutcome]]
) -> Mapping[str, Any]:
    which = LetterFilter(reason=group.reason, subject=group.subject, after_seq=group.after)
    chosen = await letters.list(which, limit=_AT_ONCE_MAX + 1, read_max=READ_MAX)
    seqs = [one.seq for one in chosen if one.seq <= group.last]
    done = failed = 0
    after, text, until = group.after, "", time.monotonic() + _SECONDS
    for seq in seqs[:_AT_ONCE_MAX]:
        if failed >= _FAILURES_MAX or time.monotonic() > until:
            break
        outcome = await do(seq)
        done, failed, after = done + outcome.done, failed + (not outcome.done), seq
        text = text if outcome.done else outcome.text
    more = bool(seqs) and after < seqs[-1]
    return {"done": done, "failed": failed, "after": after, "text": text, "more": more}

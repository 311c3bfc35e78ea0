"""Groups of dead letters for the page: counts, and redrives or purges in small batches."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict

from sea_mq_worker.admin.operator_api import DeadLetterCount, DeadLetterGroup, GroupProgress, ItemPage
from sea_mq_worker.domain.dead_letter_records import DeadLetterFilter
from sea_mq_worker.operations.broker import dead_letters
from sea_mq_worker.operations.dead_letters import DeadLetterOutcome, can_be_handled
from sea_mq_worker.operations.purge import purger
from sea_mq_worker.operations.redrive import redriver
from sea_mq_worker.ports.operations import DeadLetterStore
from sea_mq_worker.settings import Settings

READ_MAX = 2000
"""Maximum number of dead letters read for one answer."""
_BATCH_MAX = 50
_SECONDS = 3.0
"""Time limit to begin another dead letter, in seconds, so that the page can show progress."""
_FAILURES_MAX = 10
"""Number of dead letters without an effect after which the batch stops: the handler still fails."""


async def dead_letter_groups(settings: Settings) -> ItemPage[DeadLetterCount]:
    """Count the oldest dead letters by reason and subject; ``more``: others follow."""
    groups: dict[tuple[str, str], DeadLetterCount] = {}
    read = 0
    async with dead_letters(settings) as letters:
        async for one in letters.walk(read_max=READ_MAX):
            read += 1
            key = (one.reason, one.original_subject)
            first = groups.get(key)
            groups[key] = DeadLetterCount(
                reason=one.reason,
                subject=one.original_subject,
                detail=first.detail if first else one.detail,
                oldest_at=first.oldest_at if first else one.stored_at,
                count=first.count + 1 if first else 1,
                last=one.seq,
                can_be_handled=(first is not None and first.can_be_handled) or can_be_handled(one),
            )
    items = sorted(groups.values(), key=lambda group: -group.count)
    return ItemPage(items=items, more=read == READ_MAX)


async def redrive_some(
    settings: Settings, group: DeadLetterGroup, *, actor: str, reason: str
) -> GroupProgress:
    """Send the next dead letters to the handler; one without an effect stays."""
    async with redriver(settings) as again:

        async def one(seq: int) -> DeadLetterOutcome:
            return await again.redrive(seq, actor=actor, reason=reason)

        return await _each(again.dead_letters, group, one)


async def purge_some(settings: Settings, group: DeadLetterGroup, *, actor: str, reason: str) -> GroupProgress:
    """Delete the next dead letters for good, and record it in the audit."""
    async with purger(settings, actor=actor, reason=reason) as tool, tool.recorded(asdict(group)) as delete:
        return await _each(tool.dead_letters, group, delete)


async def _each(
    letters: DeadLetterStore, group: DeadLetterGroup, do: Callable[[int], Awaitable[DeadLetterOutcome]]
) -> GroupProgress:
    which = DeadLetterFilter(reason=group.reason, subject=group.subject, after_seq=group.after)
    chosen = await letters.list(which, limit=_BATCH_MAX + 1, read_max=READ_MAX)
    seqs = [one.seq for one in chosen if one.seq <= group.last]
    done = failed = 0
    after, text, until = group.after, "", time.monotonic() + _SECONDS
    for seq in seqs[:_BATCH_MAX]:
        if failed >= _FAILURES_MAX or time.monotonic() > until:
            break
        outcome = await do(seq)
        done, failed, after = done + outcome.done, failed + (not outcome.done), seq
        text = text if outcome.done else outcome.text
    more = bool(seqs) and after < seqs[-1]
    return GroupProgress(done=done, failed=failed, after=after, text=text, more=more)

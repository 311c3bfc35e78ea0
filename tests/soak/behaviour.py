"""Checks of the workers' behaviour: their changes of rows, their use of resources, their exits."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tests.soak.checks import replays
from tests.soak.deployment import PAYLOAD_CANARY, SECRET
from tests.soak.evidence import Evidence
from tests.soak.transactions import Fate
from tests.support.kept_process import Life

if TYPE_CHECKING:
    from tests.soak.watch import Sample

_LEASE_SECONDS = 3.0
_LAWFUL = {
    (None, "PENDING"),
    ("PENDING", "PENDING"),
    ("PENDING", "CLAIMED"),
    ("CLAIMED", "PUBLISHED"),
    ("CLAIMED", "PENDING"),
    ("CLAIMED", "DEAD"),
    ("PUBLISHED", "PENDING"),
    ("DEAD", "PENDING"),
}
_OPERATOR = "postgres"
_OVERLAP_SECONDS = 15.0
_WARM_UP_SECONDS = 20.0
_LIFE_SECONDS = 60.0
"""Minimum length of a run for a meaningful slope."""
_RSS_GROWTH_MAX = 12 * 2**20
_LINES_PER_MINUTE_MAX = 400.0
_LONG_LIFE_SECONDS = 300.0
_FDS_GROWTH_MAX = 10
_FDS_AT_ONCE = 70
"""Cap on handler calls (50) plus sessions (18) of a worker; in a short run they look like growth."""


def rows_change_lawfully(evidence: Evidence) -> Iterator[str]:
    """Rows change by allowed transitions only, by the lease's holder or after the end of either."""
    content: dict[str, str] = {}
    for row in evidence.outbox_log:
        for problem in _outbox_problems(row, content, evidence):
            yield f"event {row['id']}, change {row['n']} by {row['who']}: {problem}"
    for row in evidence.inbox_log:
        for problem in _inbox_problems(row):
            yield f"message {row['id']}, change {row['n']} by {row['who']}: {problem}"


def _outbox_problems(row: Mapping[str, Any], content: dict[str, str], evidence: Evidence) -> Iterator[str]:
    event_id, was, became = str(row["id"]), row["was"], row["became"]
    if (was, became) not in _LAWFUL:
        yield f"{was} -> {became}"
        return
    if content.setdefault(event_id, row["content"]) != row["content"]:
        yield "an immutable column changed"
    if was == "CLAIMED":
        yield from _settling_problems(row, evidence)
    elif became == "CLAIMED":
        if row["attempts"] != row["was_attempts"] + 1:
            yield f"a claim made {row['attempts']} attempts of {row['was_attempts']}"
        if row["was_available_at"] > row["at"]:
            yield "claimed before it was due"
    elif was in {"PUBLISHED", "DEAD"} and row["who"] != _OPERATOR:
        yield f"{was} -> {became} by a worker"


def _settling_problems(row: Mapping[str, Any], evidence: Evidence) -> Iterator[str]:
    if row["attempts"] != row["was_attempts"]:
        yield "settling changed the attempts"
    owner, error = _worker(row["was_owner"]), row["error"] or ""
    claimed_at, at = row["was_claimed_at"].timestamp(), row["at"].timestamp()
    reaped = error.startswith("the lease of") and at - claimed_at >= _LEASE_SECONDS
    taken_over = error.startswith(f"{owner} ended ") and _session_may_end(owner, claimed_at, at, evidence)
    if owner != row["who"] and not (reaped or taken_over):
        yield f"{row['was']} -> {row['became']} of a claim of {row['was_owner']}"


def _session_may_end(worker: str, claimed_at: float, at: float, evidence: Evidence) -> bool:
    """Whether the worker or its connection can have ended between a claim and a takeover."""
    ended = any(
        life.name == worker and claimed_at <= life.ended and (life.signalled_at or life.ended) <= at
        for life in evidence.lives
    )
    return ended or any(
        fault.kind.startswith(("database.", "proxy."))
        and fault.began <= at
        and claimed_at <= fault.ended + _OVERLAP_SECONDS
        for fault in evidence.faults
    )


def _inbox_problems(row: Mapping[str, Any]) -> Iterator[str]:
    taken = row["owner"] is not None and row["owner"] != row["was_owner"]
    if row["was_processed_at"] is not None and row["processed_at"] != row["was_processed_at"]:
        yield "processed_at changed"
    if taken and row["was_processed_at"] is not None:
        yield f"leased by {row['owner']} after it was processed"
    if taken and row["was_owner"] is not None and row["was_locked_until"] > row["at"]:
        yield f"{row['owner']} took the lease of {row['was_owner']} before it was over"
    settled = row["processed_at"] is not None or row["dead_lettered_at"] is not None
    was_settled = row["was_processed_at"] is not None or row["was_dead_lettered_at"] is not None
    if settled and not was_settled and row["who"] not in {_worker(row["was_owner"]), _OPERATOR}:
        yield f"settled under the lease of {row['was_owner']}"
    if was_settled and not settled and row["who"] != _OPERATOR:
        yield "opened again by a worker"


def _worker(owner: str | None) -> str:
    return (owner or "").partition("#")[0]


def resources_stay_flat(evidence: Evidence) -> Iterator[str]:
    """No session idles in a transaction; memory, descriptors and threads stay flat; logs are few."""
    for seen in evidence.idle_in_transaction:
        if seen["seconds"] > 1:
            yield f"a session of {seen['usename']} idled in a transaction for {seen['seconds']:.1f} s"
    for slope in slopes(evidence):
        fds_max = _FDS_GROWTH_MAX if slope["seconds"] >= _LONG_LIFE_SECONDS else _FDS_AT_ONCE
        if (
            slope["rss_growth"] > _RSS_GROWTH_MAX
            or slope["fds_growth"] > fds_max
            or slope["threads_growth"] > 3
        ):
            yield f"{slope['life']} grew: {slope}"
    for name, (lines, minutes) in log_rates(evidence).items():
        if lines > max(_LINES_PER_MINUTE_MAX * minutes, _LINES_PER_MINUTE_MAX):
            yield f"{name} wrote {lines} lines in {minutes:.1f} minutes"
    for name, text in evidence.logs.items():
        for canary in (SECRET, PAYLOAD_CANARY):
            if canary in text:
                yield f"the log of {name} contains {canary}"


def slopes(evidence: Evidence) -> list[dict[str, Any]]:
    """Compare the second quarter of each long run with its last."""
    lives: dict[str, list[Sample]] = defaultdict(list)
    for sample in evidence.samples:
        if sample.rss:  # 0: the process is ending
            lives[f"{sample.worker}-{sample.life}"].append(sample)
    found = []
    for name, samples in lives.items():
        settled = [sample for sample in samples if sample.at > samples[0].at + _WARM_UP_SECONDS]
        if not settled or settled[-1].at - settled[0].at < _LIFE_SECONDS:
            continue
        quarter = len(settled) // 4
        early, late = settled[quarter : 2 * quarter], settled[-quarter:]
        minutes = (late[0].at - early[0].at) / 60
        growth = {
            f"{field}_growth": statistics.median(getattr(s, field) for s in late)
            - statistics.median(getattr(s, field) for s in early)
            for field in ("rss", "fds", "threads")
        }
        found.append({
            "life": name, "seconds": round(settled[-1].at - samples[0].at), **growth,
            "rss_mb": round(late[-1].rss / 2**20, 1), "fds": late[-1].fds, "threads": late[-1].threads,
            "rss_mb_per_minute": round(growth["rss_growth"] / 2**20 / minutes, 2),
        })  # fmt: skip
    return found


def log_rates(evidence: Evidence) -> dict[str, tuple[int, float]]:
    """Return the log lines and minutes of each run."""
    return {
        life.title: (
            evidence.logs[life.title].count("\n"),
            (life.ended - life.began) / 60,
        )
        for life in evidence.lives
        if life.ended
    }


def workers_end_as_documented(evidence: Evidence) -> Iterator[str]:
    """A worker ends only by a signal, or with the documented code while a dependency is missing."""
    for life in evidence.lives:
        if not _fine(life, evidence):
            lines = evidence.logs[life.title].splitlines()
            why = _reasons(lines) or "".join(lines[-1:])
            at = datetime.fromtimestamp(life.ended, UTC).time().isoformat("seconds")
            sent = life.signal or "no signal"
            yield f"{life.title} ended at {at} with {life.code} after {sent}: {why}"


def _fine(life: Life, evidence: Evidence) -> bool:
    def during(*kinds: str) -> bool:
        return any(
            fault.kind in kinds and fault.began < life.ended < fault.ended + _OVERLAP_SECONDS
            for fault in evidence.faults
        )

    if life.signal == "SIGKILL":
        return life.code == -9
    if life.signal == "SIGTERM":
        hurt = any(
            f.began < life.ended and f.ended > life.signalled_at - 2
            for f in evidence.faults
            if f.kind != "worker.stop"
        )
        unborn = life.code == -15 and not evidence.logs[life.title]
        return life.code == 0 or (life.code == 5 and hurt) or unborn
    log = evidence.logs[life.title]
    reasons = "" if "worker_started" in log else _reasons(log.splitlines())
    missing = during("broker.delete_consumer") and ("does not exist" in reasons or "not found" in reasons)
    return life.code == 3 and (missing or (during("broker.forbid") and "permission" in reasons))


def _reasons(lines: Sequence[str]) -> str:
    """Return the log lines that give the reason of a worker's end."""
    return "\n".join(line for line in lines if '"loop_died"' in line or '"contract_broken"' in line)


SERIES = {
    "duplicates dropped by the stream": "sea_mq_outbox_duplicates_total",
    "expired leases reaped": "sea_mq_outbox_leases_reaped_total",
    "late settlements of events refused": 'sea_mq_leases_lost_total{side="outbox"}',
    "late settlements of messages refused": 'sea_mq_leases_lost_total{side="inbox"}',
    "events released without an attempt": "sea_mq_outbox_released_total",
    "duplicates acknowledged without a call": "sea_mq_inbox_skipped_total",
    "circuit breakers opened": "sea_mq_circuit_opened_total",
}


def sometimes(evidence: Evidence) -> dict[str, int]:
    """Count the rare paths that a soak must have taken."""
    totals = Counter[str]()
    for life in evidence.lives:
        for series, value in life.metrics.items():
            if series.startswith("sea_mq_"):
                for name in {series, series.partition("{")[0]}:
                    totals[name] += int(value)
    found = {text: totals[name] for text, name in SERIES.items()}
    found["409 responses"] = sum(call.status == 409 for call in evidence.heard)
    found["commits with an unknown outcome"] = sum(t.fate is Fate.UNKNOWN for t in evidence.ledger.values())
    found["transactions rolled back"] = sum(t.fate is Fate.ROLLED_BACK for t in evidence.ledger.values())
    found["replays delivered"] = replays(evidence).total()
    found["redrives done"] = sum(
        row["was_dead_lettered_at"] is not None and row["dead_lettered_at"] is None
        for row in evidence.inbox_log
    )
    found["exhausted messages"] = sum(m.headers["Dlq-Reason"] == "EXHAUSTED" for m in evidence.letters)
    return found


def rare_paths_were_reached(evidence: Evidence) -> Iterator[str]:
    """Each path that only faults cause was taken at least once."""
    for what, count in sometimes(evidence).items():
        if not count:
            yield f"never: {what}"


BEHAVIOUR = (
    ("A9", rows_change_lawfully),
    ("A10", resources_stay_flat),
    ("A11", workers_end_as_documented),
)

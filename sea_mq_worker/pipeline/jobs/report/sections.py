"""The sections of the page, from the summary to the sources of the figures."""

from collections.abc import Sequence
from html import escape

from sea_mq_worker.pipeline.jobs.report import plots as drawn
from sea_mq_worker.pipeline.jobs.report.formatting import (
    Level,
    counted,
    duration,
    findings,
    moment,
    number,
    share,
    size,
    step,
)
from sea_mq_worker.pipeline.jobs.report.html_parts import (
    Cell,
    Figure,
    card,
    empty,
    figure,
    section,
    table,
    text,
    tiles,
)
from sea_mq_worker.pipeline.jobs.report.model import Report, Share, Shares, Way
from sea_mq_worker.pipeline.jobs.report.plots import Plot

_VERDICTS: dict[Level, str] = {"bad": "Needs attention", "warn": "Check", "good": "All is well"}
_BADGES: dict[Level, str] = {"bad": "problem", "warn": "notice", "good": "fine"}


def overview(report: Report) -> str:
    """Return the summary: a verdict, its reasons, and the totals."""
    found = findings(report)
    worst = found[0].level
    lines = "".join(
        f'<li><span class="badge {one.level}">{_BADGES[one.level]}</span><span>{text(one.text)}'
        + (f" See <code>{escape(one.command)}</code>" if one.command else "")
        + "</span></li>"
        for one in found
    )
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title in _links(report))
    return (
        f'<section class="card verdict {worst}" aria-labelledby="verdict">'
        f'<h2 id="verdict">{_VERDICTS[worst]}</h2>'
        f'<ul>{lines}</ul></section>{_sums(report)}<nav aria-label="Parts">{links}</nav>'
    )


def throughput(report: Report, plots: dict[str, Plot]) -> str:
    """Return the section of events by time."""
    ways: tuple[tuple[Way, str, tuple[str, str], str], ...] = (
        ("outbox", "Outbox", ("written", "published"), "No event was written or published in this period."),
        ("inbox", "Inbox", ("received", "processed"), "No message was received or processed in this period."),
    )
    cards = [
        card(
            title,
            figure(
                plots,
                f"throughput-{way}",
                drawn.throughput(report, way),
                alternative=drawn.describe(report, names),
                table_=table(
                    f"{title} by time",
                    ("from, UTC", *names),
                    ((moment(each.at), *(getattr(each, name) for name in names)) for each in report.bins),
                ),
            )
            if any(getattr(each, name) for each in report.bins for name in names)
            else empty(nothing),
        )
        for way, title, names, nothing in ways
    ]
    about = (
        f"Events per {step(report.bin_seconds)}, each counted at the time when it was written, published, "
    )
    return section(
        "throughput",
        "Throughput",
        f"{about}received or processed. The period may cut the first and the last interval short.",
        *cards,
    )


def latency(report: Report, plots: dict[str, Plot]) -> str:
    """Return the section of latencies."""
    ways: tuple[tuple[Way, str, str], ...] = (
        ("outbox", "Occurred to published", "No event was published in this period."),
        ("inbox", "Received to processed", "No message was processed in this period."),
    )
    return section(
        "latency",
        "Latency",
        "Half of the events took at most p50, 95 of 100 at most p95, 99 of 100 at most p99. "
        "The scale is logarithmic.",
        *(card(title, _latency(report, plots, way, title, nothing)) for way, title, nothing in ways),
    )


def retries(report: Report, plots: dict[str, Plot]) -> str:
    """Return the section of events that took more than one attempt."""
    about = "Attempts until an event was published or a message was processed."
    retried = [each for each in report.attempts if each.attempts > 1]
    if not retried:
        return section(
            "retries",
            "Retries",
            about,
            card("Attempts", empty("Every first attempt succeeded."), wide=True),
        )
    totals = report.totals
    summary = (
        f"Published after a retry: {share(totals.outbox_retried, totals.published)}. "
        f"Processed after a retry: {share(totals.inbox_retried, totals.processed)}."
    )
    rows = (
        ("published" if each.way == "outbox" else "processed", each.attempts, each.count)
        for each in report.attempts
    )
    by_time = table(
        "Retries by time",
        ("from, UTC", "published after a retry", "processed after a retry"),
        ((moment(each.at), each.outbox_retried, each.inbox_retried) for each in report.bins),
    )
    distribution = figure(
        plots,
        "attempts",
        drawn.attempts(report),
        alternative=summary,
        table_=table("Events by attempts", ("outcome", "attempts", "events"), rows),
    )
    over_time = figure(plots, "retries", drawn.retries(report), alternative=summary, table_=by_time)
    return section(
        "retries",
        "Retries",
        f"{about} {summary}",
        card("More than one attempt", distribution),
        card("Over time", over_time),
    )


def dead(report: Report, plots: dict[str, Plot]) -> str:
    """Return the section of dead events and dead letters."""
    if report.dead_letters:
        over_time = card("Dead letters over time", _letters_plot(report, plots))
        letters = card("Dead letters by reason and subject", _letters(report), wide=True)
    else:
        over_time = card("Dead letters", empty("No dead letters in this period."))
        letters = ""
    most = max((each.count for each in report.dead), default=1)
    events = (
        table(
            "Dead events by error and type",
            ("error", "event type", "events"),
            (
                (each.reason, each.event_type, Figure(number(each.count), each.count / most))
                for each in report.dead
            ),
        )
        if report.dead
        else empty("No event that was written in this period is dead.")
    )
    source = f"stream {report.dead_letter_source}" if report.dead_letter_source else "inbox table"
    about = (
        "Dead events were given up before publication. Dead letters are messages that the worker gave up "
        f"after receipt; they were read from the {source}."
    )
    events_card = card("Dead events", events)
    return section("dead", "Dead events and dead letters", about, over_time, events_card, letters)


def largest(report: Report, plots: dict[str, Plot]) -> str:  # noqa: ARG001 - as the other parts
    """Return the section of the ordering keys and event types with the most events."""
    return section(
        "largest",
        "Largest keys and types",
        "Share of the events written in this period; the size is that of their payloads.",
        card("Ordering keys", _shares(report, report.keys, "ordering key", "No event has an ordering key.")),
        card(
            "Event types", _shares(report, report.types, "event type", "No event was written in this period.")
        ),
    )


def backlog(report: Report, plots: dict[str, Plot]) -> str:
    """Return the section of the backlog."""
    about = f"Events and messages neither finished nor dead at {moment(report.at)} UTC, of any age."
    if not report.backlog:
        return section(
            "backlog", "Backlog", about, card("By state and age", empty("Nothing waits."), wide=True)
        )
    rows = (
        (f"{each.way} {each.state.lower()}", each.age, each.count, Figure(duration(each.oldest_seconds)))
        for each in report.backlog
    )
    counts = table("Backlog by state and age", ("state", "age", "events", "oldest"), rows)
    summary = f"{counted(sum(each.count for each in report.backlog), 'event')} by state and age"
    plot = figure(plots, "backlog", drawn.backlog(report), alternative=summary, table_=counts)
    return section("backlog", "Backlog", about, card("By state and age", plot, wide=True))


def streams(report: Report, plots: dict[str, Plot]) -> str:
    """Return the section of messages that streams stored; empty without a lake."""
    if not report.lake:
        return ""
    about = "Messages landed in the lake, by the minute when their stream stored them."
    if not report.stream_bins:
        return section(
            "streams", "Streams", about, card("By context", empty("None in this period."), wide=True)
        )
    rows = ((moment(each.at), each.context, each.count) for each in report.stream_bins)
    counts = table("Messages by time and context", ("from, UTC", "context", "messages"), rows)
    summary = counted(sum(each.count for each in report.stream_bins), "message")
    plot = figure(plots, "streams", drawn.streams(report), alternative=summary, table_=counts)
    return section("streams", "Streams", about, card("By context", plot, wide=True))


parts = (throughput, latency, retries, dead, largest, backlog, streams)
"""The sections, in the order of the page."""


def footer(report: Report) -> str:
    """Return the sources of the figures and their times."""
    letters = f"stream {report.dead_letter_source}" if report.dead_letter_source else "table inbox_messages"
    lake = (
        f"; the lake's archive ({counted(report.totals.archived, 'event')} only there)" if report.lake else ""
    )
    entries = (
        ("Context", report.context),
        ("Period", f"{moment(report.since)} to {moment(report.until)} UTC, the end not included"),
        ("Tables read as of", f"{moment(report.at)} UTC, by PostgreSQL's clock"),
        ("Events", f"table outbox_events{lake}"),
        ("Dead letters", letters),
        (
            "Not included",
            "payloads, ids, addresses and credentials; messages that were pruned from the inbox",
        ),
    )
    lines = "".join(f"<dt>{name}</dt><dd>{text(value)}</dd>" for name, value in entries)
    return f'<footer class="card"><h2>Sources</h2><dl>{lines}</dl></footer>'


def _links(report: Report) -> Sequence[tuple[str, str]]:
    links = [
        ("throughput", "Throughput"),
        ("latency", "Latency"),
        ("retries", "Retries"),
        ("dead", "Dead"),
        ("largest", "Keys and types"),
        ("backlog", "Backlog"),
    ]
    return [*links, ("streams", "Streams")] if report.lake else links


def _sums(report: Report) -> str:
    totals = report.totals
    waiting = sum(each.count for each in report.backlog)
    out, into = report.latency("outbox"), report.latency("inbox")
    return tiles(
        (
            ("Written", number(totals.written), size(totals.written_bytes), ""),
            ("Published", number(totals.published), f"p99 {duration(out.p99)}" if out else "none", ""),
            ("Received", number(totals.received), "messages", ""),
            ("Processed", number(totals.processed), f"p99 {duration(into.p99)}" if into else "none", ""),
            (
                "Dead events",
                number(totals.dead),
                f"{share(totals.dead, totals.written)} of written",
                "bad" if totals.dead else "",
            ),
            (
                "Dead letters",
                number(report.dead_letter_count),
                f"{share(totals.dead_lettered, totals.received)} of received",
                "bad" if report.dead_letter_count else "",
            ),
            ("Backlog", number(waiting), f"at {moment(report.at)[11:]} UTC", ""),
        )
    )


def _latency(report: Report, plots: dict[str, Plot], way: Way, title: str, nothing: str) -> str:
    total = report.latency(way)
    if total is None:
        return empty(nothing)
    rows: list[list[Cell | Figure]] = [
        [
            "whole period" if each.at is None else moment(each.at),
            each.count,
            *(Figure(duration(seconds)) for seconds in (each.p50, each.p95, each.p99, each.longest)),
        ]
        for each in report.latencies
        if each.way == way
    ]
    summary = (
        f"p50 {duration(total.p50)}, p95 {duration(total.p95)}, p99 {duration(total.p99)}, "
        f"longest {duration(total.longest)}"
    )
    return f'<p class="soft">Whole period: {summary}</p>' + figure(
        plots,
        f"latency-{way}",
        drawn.latencies(report, way),
        alternative=f"{title}: {summary}",
        table_=table(f"{title} by time", ("from, UTC", "events", "p50", "p95", "p99", "longest"), rows),
    )


def _letters_plot(report: Report, plots: dict[str, Plot]) -> str:
    rows = ((moment(each.at), each.reason, each.count) for each in report.dead_letter_bins)
    return figure(
        plots,
        "dead-letters",
        drawn.dead_letters(report),
        alternative=f"{counted(report.dead_letter_count, 'dead letter')} in this period",
        table_=table("Dead letters by time and reason", ("from, UTC", "reason", "dead letters"), rows),
    )


def _letters(report: Report) -> str:
    most = max(each.count for each in report.dead_letters)
    return table(
        "Dead letters by reason and subject",
        ("reason", "subject", "dead letters", "latest, UTC"),
        (
            (each.reason, each.subject, Figure(number(each.count), each.count / most), moment(each.latest))
            for each in report.dead_letters
        ),
    )


def _shares(report: Report, shares: Shares, name: str, nothing: str) -> str:
    if not shares.largest:
        return empty(nothing)
    most = shares.largest[0].count

    def row(each: Share) -> Sequence[str | int | Figure]:
        of_all = share(each.count, report.totals.written)
        return (
            each.name,
            Figure(number(each.count), each.count / most),
            Figure(of_all),
            Figure(size(each.size)),
        )

    rest = shares.distinct - len(shares.largest)
    more = f'<p class="soft">{number(rest)} others, none with more events.</p>' if rest else ""
    return table(f"Largest by {name}", (name, "events", "share", "size"), map(row, shares.largest)) + more

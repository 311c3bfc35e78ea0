"""Budgets of the worker, in figures that no machine changes."""

BUDGETS: dict[str, tuple[float, str]] = {
    # a drain, and events that come one by one
    "statements to PostgreSQL per batch of events": (
        2, "one claims, one settles; each is a round trip and a transaction"),
    "statements to PostgreSQL per event, at 100 single events a second": (
        1.5, "one claims each event; several are settled together"),
    "bytes of write-ahead log per event, without its insert": (600, "a claim touches no index"),
    "messages to and from the broker per event, in batches of 50": (
        2.1, "the event and its acknowledgement, which proves its place in the stream"),
    "calls of functions per event, Python's and C's": (76, "20 % above the present count"),
    # messages, 50 in flight
    "statements to PostgreSQL per inbound message": (
        0.15, "0.08 in whole batches; late answers make smaller ones"),
    "other statements while a thousand messages are received": (
        15, "those of an idle worker and of new connections"),
    "messages to and from the broker per inbound message": (
        2.3, "the delivery, its acknowledgement, and a request and its end for each batch"),
    "HTTP requests per message that the handler accepts": (1, "a received answer is never requested again"),
    "calls of functions per inbound message, Python's and C's": (
        400, "a third above the present count in whole batches"),
    # a worker that starts, and one without work
    "statements of a start, until idle lanes poll slowly": (
        75, "locks and prepared statements of each connection, the schema's check, eleven polls a lane"),
    "statements per second of an idle worker": (
        2, "the three below together, and some for a new connection"),
    "polls for events per second of an idle worker": (4 / 3, "each of two lanes polls every 1.5 to 2 s"),
    "runs of any other statement in 15 s of an idle worker": (
        1, "depth, version and role every 15 s, expired leases every 20 s"),
    "all of these in 15 s": (9, "five for depth, version and role, two for leases"),
    # pages, beside 50,000 finished rows and 200 others where nothing else is said
    "pages that the depth of the outbox reads": (30, "indexes alone suffice"),
    "pages that an operator's query reads": (400, "by an index, each of the others once or twice"),
    "pages that a list or a replay reads in a backlog": (
        60, "of 20,000 events, not analysed yet: by an index; the whole backlog has 930"),
    "pages that one search for expired leases reads": (
        2500, "5,000 rows at each index's front, 5,000 further on"),
    "pages that a statement of the loops reads per row, with any statistics": (
        30, "it finds a row by one index and adds it to up to six"),
    "the same in partitions": (60, "a claim searches each partition that may have events of a key"),
    # modules that a command imports
    "modules of `sea-mq-worker --help` or a command's help": (550, "typer parses the command line"),
    "modules of a command such as `depth` or `streams check`": (
        510, "a fifth above the settings and one server's driver"),
}  # fmt: skip
"""The most of each, and the reason for the figure."""


def check(what: str, found: float, detail: object = "") -> None:
    """Fail where more was used; ``detail`` says by what."""
    most, _ = BUDGETS[what]
    assert found <= most, f"{what}: {found:.4g}, at most {most:g}\n{detail}"


def unbatched_statements(*, seconds: float) -> float:
    """Return the limit of a worker's statements that belong to no batch."""
    start, _ = BUDGETS["statements of a start, until idle lanes poll slowly"]
    per_second, _ = BUDGETS["statements per second of an idle worker"]
    return start + per_second * seconds

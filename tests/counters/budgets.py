"""Budgets of the worker, in figures that no machine changes."""

from typing import NamedTuple


class Budget(NamedTuple):
    """The most of something, and the reason for the figure."""

    what: str
    most: float
    why: str

    def check(self, found: float, detail: object = "") -> None:
        """Fail where more was used; ``detail`` says by what."""
        assert found <= self.most, f"{self.what}: {found:.4g}, at most {self.most:g}\n{detail}"


STATEMENTS_PER_BATCH = Budget(
    "statements to PostgreSQL per batch of events",
    2,
    "one claims, one settles; each is a round trip and a transaction",
)
STATEMENTS_PER_PACED_EVENT = Budget(
    "statements to PostgreSQL per event, at 100 single events a second",
    1.5,
    "one claims each event; several are settled together",
)
STATEMENTS_PER_MESSAGE = Budget(
    "statements to PostgreSQL per inbound message, 50 in flight",
    0.15,
    "0.08 in whole batches; late answers make smaller ones",
)
OTHER_STATEMENTS_OF_INBOX = Budget(
    "other statements while a thousand messages are received",
    15,
    "those of an idle worker and of new connections",
)
STATEMENTS_AT_START = Budget(
    "statements of a start, until idle lanes poll slowly",
    75,
    "locks and prepared statements of each connection, the schema's check, eleven polls a lane",
)
IDLE_STATEMENTS_PER_SECOND = Budget(
    "statements per second of an idle worker", 2, "the three below together, and some for a new connection"
)
IDLE_LOOKS_PER_SECOND = Budget(
    "polls for events per second of an idle worker",
    4 / 3,
    "each of two lanes polls every 1.5 to 2 s",
)
IDLE_REPEATS = Budget(
    "runs of any other statement in 15 s of an idle worker",
    1,
    "depth, version and role every 15 s, expired leases every 20 s",
)
IDLE_OTHERS = Budget("all of these in 15 s", 9, "five for depth, version and role, two for leases")
LOG_BYTES_PER_EVENT = Budget(
    "bytes of write-ahead log per event, without its insert", 600, "a claim touches no index"
)
BROKER_MESSAGES_PER_EVENT = Budget(
    "messages to and from the broker per event, in batches of 50",
    2.1,
    "the event and its acknowledgement, which proves its place in the stream",
)
BROKER_MESSAGES_PER_MESSAGE = Budget(
    "messages to and from the broker per inbound message, 50 in flight",
    2.3,
    "the delivery, its acknowledgement, and a request and its end for each batch",
)
REQUESTS_PER_MESSAGE = Budget(
    "HTTP requests per message that the handler accepts", 1, "a received answer is never requested again"
)
CALLS_PER_EVENT = Budget("calls of functions per event, Python's and C's", 76, "20 % above the present count")
CALLS_PER_MESSAGE = Budget(
    "calls of functions per inbound message, Python's and C's",
    400,
    "a third above the present count in whole batches",
)
PAGES_OF_DEPTH = Budget(
    "pages that the depth of the outbox reads, beside 50,000 published events and 200 others",
    30,
    "indexes alone suffice",
)
PAGES_OF_A_LOOK = Budget(
    "pages that an operator's query reads, beside 50,000 finished rows and 200 others",
    400,
    "by an index, each of the others once or twice",
)
PAGES_IN_A_BACKLOG = Budget(
    "pages that a list or a replay reads in a backlog of 20,000 events, not analysed yet",
    60,
    "by an index; the whole backlog has 930",
)
PAGES_OF_A_REAP = Budget(
    "pages that one search for expired leases reads",
    2500,
    "5,000 rows at each index's front, 5,000 further on",
)
PAGES_PER_ROW = Budget(
    "pages that a statement of the loops reads per row, with any statistics",
    30,
    "it finds a row by one index and adds it to up to six",
)
PAGES_PER_ROW_OF_PARTITIONS = Budget(
    "the same in partitions", 60, "a claim searches each partition that may have events of a key"
)
MODULES_OF_HELP = Budget(
    "modules that `sea-mq-worker --help` or a command's help imports",
    550,
    "typer parses the command line",
)
MODULES_OF_A_COMMAND = Budget(
    "modules that a command such as `depth` or `streams check` imports",
    510,
    "a fifth above the settings and one server's driver",
)


def unbatched_statements(*, seconds: float) -> float:
    """Return the limit of a worker's statements that belong to no batch."""
    return STATEMENTS_AT_START.most + IDLE_STATEMENTS_PER_SECOND.most * seconds

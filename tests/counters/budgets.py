"""Budgets of the worker, in figures that no machine changes; docs/proof/budgets.md is generated from them."""

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
    "statements to PostgreSQL per event, 100 a second come one by one",
    1.5,
    "one claims each; the settlements of several go together, and the lane with keys does not look",
)
STATEMENTS_PER_MESSAGE = Budget(
    "statements to PostgreSQL per inbound message, 50 in hand",
    0.15,
    "half of them at a time are recorded by one and closed by one, which makes 0.08; what a busy machine"
    " answers late is closed, and made up for, in smaller parts",
)
OTHER_STATEMENTS_OF_INBOX = Budget(
    "other statements while a thousand messages are taken in",
    15,
    "those of a worker with nothing to do, and what new connections ask once",
)
STATEMENTS_AT_START = Budget(
    "statements of a start, until idle lanes have slowed down",
    50,
    "each connection asks once for what its statements need, the schema is checked, and an idle lane looks"
    " eleven times in its first three seconds",
)
IDLE_STATEMENTS_PER_SECOND = Budget(
    "statements per second of a worker with nothing to do",
    2,
    "the three below together, with room for a connection that is made anew",
)
IDLE_LOOKS_PER_SECOND = Budget(
    "looks for events per second of a worker with nothing to do",
    4 / 3,
    "each of two lanes looks every 1.5 to 2 s; in between a commit would wake it",
)
IDLE_REPEATS = Budget(
    "runs of any other statement in 15 s of a worker with nothing to do",
    1,
    "depth, version and role are asked every 15 s, leases that ran out every 30 s",
)
IDLE_OTHERS = Budget(
    "such other statements in 15 s", 9, "five of depth, version and role, two of leases, the rest still rarer"
)
LOG_BYTES_PER_EVENT = Budget(
    "bytes of write-ahead log per event, beside its insert",
    600,
    "a claim that touches no index, and a settlement that takes the event out of what is due",
)
BROKER_MESSAGES_PER_EVENT = Budget(
    "messages to and from the broker per event, in batches of 50",
    1.1,
    "the event, and two acknowledgements a batch: without `allow_batched` on the stream it would be 2",
)
BROKER_MESSAGES_PER_MESSAGE = Budget(
    "messages to and from the broker per inbound message, 50 in hand",
    2.3,
    "the delivery and its acknowledgement, a request and its end for each batch",
)
REQUESTS_PER_MESSAGE = Budget(
    "HTTP requests per message that the handler accepts", 1, "an answer that came is not asked for again"
)
CALLS_PER_EVENT = Budget(
    "calls of functions per event, Python's and C's",
    76,
    "20 % above what it takes; the profile of a drain tells which are new",
)
CALLS_PER_MESSAGE = Budget(
    "calls of functions per inbound message, Python's and C's",
    400,
    "a third above what it takes in whole batches; in smaller ones it takes more",
)
PAGES_OF_DEPTH = Budget(
    "pages that the depth of the outbox reads, beside 50,000 published events and 200 others",
    30,
    "counted by indexes alone: each event's own page would make 200",
)
PAGES_OF_A_LOOK = Budget(
    "pages that a question of an operator reads, beside 50,000 finished rows and 200 others",
    400,
    "by an index, each of the others once or twice; without one all 2,600 of the outbox or 880 of the inbox",
)
PAGES_IN_A_BACKLOG = Budget(
    "pages that a list or a replay reads to find its events in a backlog of 20,000 that is not analysed yet",
    60,
    "by an index, in its order: the whole backlog has 930",
)
PAGES_OF_A_REAP = Budget(
    "pages that one look for leases that ran out reads, whatever waits",
    2500,
    "5,000 rows of each index in front, and 5,000 behind; all of 60,000 waiting events would make 6,000",
)
PAGES_PER_ROW = Budget(
    "pages that a statement of the loops reads for each row, whatever was analysed before its table grew",
    30,
    "it finds a row by one index and enters the row into up to six; a plan that suits an empty table would"
    " read all of a large one",
)
PAGES_PER_ROW_OF_PARTITIONS = Budget(
    "the same in partitions", 60, "a claim looks for a key in each partition that may have its events"
)
MODULES_OF_HELP = Budget(
    "modules that `sea-mq-worker --help` or the help of a command imports",
    550,
    "the command line alone, and what reads it and draws the answer: typer's own way",
)
MODULES_OF_A_COMMAND = Budget(
    "modules that a command such as `depth` or `streams check` imports",
    510,
    "a fifth above what the settings and one server's driver take; another server's take about 60",
)


def unbatched_statements(*, seconds: float) -> float:
    """Return how many statements a worker may have made in its life that belong to no batch."""
    return STATEMENTS_AT_START.most + IDLE_STATEMENTS_PER_SECOND.most * seconds

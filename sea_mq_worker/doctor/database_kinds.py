"""The words for what can be wrong with PostgreSQL."""

from sea_mq_worker.doctor.catalog import REFUSES, Kind
from sea_mq_worker.doctor.finding import Severity


class DatabaseKind(Kind):
    """Found by PostgreSQL alone."""

    # reaching it
    DATABASE_UNREACHABLE = (
        Severity.ERROR,
        "PostgreSQL does not answer, or not in time",
        "nothing is published or received",
        "start PostgreSQL, look at what it is busy with, or correct SEA_MQ_DATABASE_URL",
    )
    DATABASE_READ_ONLY = (
        Severity.ERROR,
        "PostgreSQL takes no changes: a standby, or default_transaction_read_only is on",
        "nothing is published or received",
        "name the primary in SEA_MQ_DATABASE_URL, or set default_transaction_read_only off for the login",
    )
    DATABASE_REFUSES = (
        Severity.ERROR,
        "PostgreSQL refuses the login, TLS or a statement",
        REFUSES,
        "correct SEA_MQ_DATABASE_URL, or what the server's own words name",
    )
    SCHEMA_VERSION = (
        Severity.ERROR,
        "the schema is missing, too old, or newer than this worker can work on",
        REFUSES,
        "migrate, or run the worker that the schema belongs to",
    )
    SCHEMA_OWNER = (
        Severity.ERROR,
        "the tables belong to another context",
        f"{REFUSES}: it would publish under the wrong subjects",
        "correct SEA_MQ_CONTEXT, or give this context a schema of its own by SEA_MQ_DATABASE_SCHEMA",
    )
    POOLER_UNDECLARED = (
        Severity.ERROR,
        "a pooler in transaction mode is in between, and SEA_MQ_DATABASE_POOLER is not set",
        "prepared statements and the settings of a session get lost between two transactions",
        "set SEA_MQ_DATABASE_POOLER=true, or connect directly",
    )
    NOTIFY_LOST = (
        Severity.WARNING,
        "a notification does not come back on the same URL",
        "events are found by polling, up to SEA_MQ_OUTBOX_POLL_SECONDS late",
        "connect directly, or set SEA_MQ_OUTBOX_NOTIFY=false if that delay is meant",
    )
    DATABASE_CLOCK = (
        Severity.WARNING,
        "PostgreSQL's clock and this machine's differ by more than a minute",
        "events of this machine's producers are refused as FUTURE_EVENT or come late, and logs mislead",
        "let both machines follow the same time server",
    )
    # what was granted and set
    RIGHTS_MISSING = (
        Severity.ERROR,
        "the login lacks a privilege that the worker needs",
        "the worker does not start, or pauses the side that needs it",
        "grant it, best by sql/roles.sql",
    )
    RIGHTS_OF_A_READER = (
        Severity.WARNING,
        "the login may change nothing, as the reader's of sql/roles.sql",
        "the worker could not run with it, and the rights of its own login were not examined",
        "run doctor with the worker's login, too",
    )
    FSYNC_OFF = (
        Severity.ERROR,
        "PostgreSQL does not write through to the disk",
        "a crash of its machine loses committed events, and may ruin the database",
        "switch it on; after a crash meanwhile, restore a backup",
    )
    SYNCHRONOUS_COMMIT_OFF = (
        Severity.WARNING,
        "commits are confirmed before they are on the disk",
        (
            "a crash of the server forgets the latest effects and marks: they are repeated, perhaps later "
            "than the stream remembers"
        ),
        "switch it on, for the service too, whose latest events a crash would lose",
    )
    STANDBY_MISSING = (
        Severity.ERROR,
        "commits wait for a standby, and none is connected",
        "every change hangs, the service's too",
        "start the standby, or take it out of synchronous_standby_names",
    )
    DATABASE_ENCODING = (
        Severity.WARNING,
        "the database is encoded other than in UTF8",
        "what has other characters is refused: events, and errors, whose rows cannot be settled",
        "make a database WITH ENCODING 'UTF8', and restore a dump of this one into it",
    )
    TRIGGERS_OFF = (
        Severity.ERROR,
        "session_replication_role keeps triggers from running",
        "no rule of the lifecycle is enforced, and no insert wakes the worker",
        "set it back to origin",
    )
    TWO_PHASE_COMMIT = (
        Severity.INFO,
        "transactions may be prepared here: max_prepared_transactions is above 0",
        "while a worker listens, PREPARE TRANSACTION fails after an insert into the outbox: it has notified",
        "have producers that prepare their transactions run SET LOCAL sea_mq.notify = off before they insert",
    )
    SESSION_TIMEOUTS = (
        Severity.WARNING,
        "the role's time-outs end sessions or transactions that the worker needs",
        "connections break while nothing is wrong",
        "set them back for the worker's role; it brings time-outs of its own",
    )
    CONNECTIONS_SHORT = (
        Severity.WARNING,
        "fewer connections are left than a worker may open",
        "under load statements wait for a connection and fail",
        "raise the limit, or lower SEA_MQ_DATABASE_POOL_MAX",
    )
    # the tables
    TABLE_LOCKED = (
        Severity.ERROR,
        "a session keeps the worker from a table for longer than its statements wait",
        "nothing is published or received",
        "end it where it was begun; as a last resort, end its session",
    )
    ROW_SECURITY = (
        Severity.ERROR,
        "row security decides which rows the login sees",
        "what it hides is never published or handled, without a word",
        "switch it off for the table, or give the login BYPASSRLS",
    )
    TABLE_UNLOGGED = (
        Severity.ERROR,
        "a table is unlogged",
        "PostgreSQL empties it after a crash",
        "make it a logged one",
    )
    INDEX_MISSING = (
        Severity.ERROR,
        "an index of the schema is missing",
        "statements that count on it read the whole table",
        "make it again",
    )
    INDEX_INVALID = (
        Severity.ERROR,
        "an index is invalid, as a failed CREATE INDEX CONCURRENTLY leaves it",
        "it costs every write and serves no statement",
        "build it again",
    )
    TRIGGER_MISSING = (
        Severity.ERROR,
        "a trigger of the schema is missing",
        "a rule of the lifecycle is not enforced, or no insert wakes the worker",
        "make it again",
    )
    TRIGGER_DISABLED = (
        Severity.ERROR,
        "a trigger is disabled",
        "a rule of the lifecycle is not enforced, or no insert wakes the worker",
        "enable it",
    )
    FUNCTION_DIFFERS = (
        Severity.ERROR,
        "a function of the schema is missing, or its text or search path is not that of the migrations",
        "a rule of the lifecycle is not enforced, or is another one",
        "make it again; where one was missing, run sql/roles.sql again, too",
    )
    CONSTRAINT_DIFFERS = (
        Severity.ERROR,
        "a constraint of the schema is missing, or is not as the migrations define it",
        "a rule of the tables is not enforced: rows can be written that no worker can bring to an end",
        "make it again; if that is refused, mend the rows that break it first",
    )
    AUTOVACUUM_OFF = (
        Severity.WARNING,
        "autovacuum is off, for a table or altogether, or track_counts, which it goes by",
        "dead rows stay, and each claim walks over them",
        "switch it on",
    )
    DEAD_ROWS = (
        Severity.WARNING,
        "a table has more than five times the dead rows that start an autovacuum",
        "claims slow down and the table grows; something holds vacuum back or it is too slow",
        "vacuum it, and look for old transactions",
    )
    TRANSACTION_OPEN_LONG = (
        Severity.WARNING,
        "a transaction has been open for more than five leases",
        "no row that died since can be removed: claims slow down and the tables grow",
        "end it where it was begun; as a last resort, end its session",
    )
    TRANSACTION_PREPARED_LONG = (
        Severity.WARNING,
        "a prepared transaction has been waiting for more than five leases",
        "no row that died since can be removed, and its locks stay through a restart",
        "commit it or roll it back in its database",
    )
    SLOT_INACTIVE = (
        Severity.WARNING,
        "a replication slot keeps WAL that nobody fetches",
        "the disk fills up, and PostgreSQL stops; a slot may hold vacuum back, too",
        "start what uses it; drop it if nothing does any more",
    )
    # the rows
    OUTBOX_UNATTENDED = (
        Severity.ERROR,
        "an event has been due for a minute, and no worker is connected",
        "nothing is published",
        "start the worker",
    )
    OUTBOX_BEHIND = (
        Severity.WARNING,
        "an event has been due for more than five leases, although a worker is connected",
        "events come late",
        "look at the worker's /readyz for what it waits for",
    )
    OUTBOX_AHEAD = (
        Severity.WARNING,
        "open events are of a time to come: PostgreSQL's clock was set back since they were written",
        "ages and times mislead; a worker sends them within 20 s, without one they count as waiting",
        "run a worker, and see that the server's clock follows a time server",
    )
    OUTBOX_FAILING = (
        Severity.WARNING,
        "events that wait have an error",
        "they are tried again; until what the error says is mended, they and what comes after them are late",
        "mend what the error says; they are then published without further ado",
    )
    OUTBOX_DEAD = (
        Severity.WARNING,
        "events are DEAD",
        "nobody publishes them any more",
        "mend what their errors say, then `outbox replay` them; `outbox discard` what can never be sent",
    )
    OUTBOX_UNPRUNED = (
        Severity.WARNING,
        "events that were published more than 30 days ago are still there",
        "the table grows without end",
        "prune or archive regularly",
    )
    SEQUENCE_BEHIND = (
        Severity.ERROR,
        "the sequence of `seq` is behind the table, as after rows were copied in without it",
        "new events get lower numbers than older ones, and are published before these of their key",
        "set the sequence to the table's highest number; check the order of what was written meanwhile",
    )
    PARTITIONS_SHORT = (
        Severity.WARNING,
        "the outbox has partitions for less than half of SEA_MQ_OUTBOX_PARTITION_DAYS ahead",
        "events of a day without one go to the default partition, and the day can have none any more",
        "start a worker, or look for `partitions_not_made` in its log",
    )
    DEFAULT_PARTITION_USED = (
        Severity.WARNING,
        "the default partition of the outbox holds events, or has held some",
        "it is read whole for each new partition, and above 1 GB none is made any more",
        "let producers use UUIDv7; when `prune` has deleted the events, give the room back",
    )
    INBOX_ORPHANS = (
        Severity.WARNING,
        "messages wait that came by a consumer which is not in SEA_MQ_CONSUMERS",
        "this worker handles them no more",
        "add the consumer to SEA_MQ_CONSUMERS until it has none left",
    )
    INBOX_FAILING = (
        Severity.WARNING,
        "messages that wait have an error",
        "they are tried again, and dead-lettered when their attempts are spent",
        "mend what the error says, mostly in the handler; they are then handled without further ado",
    )
    INBOX_STUCK = (
        Severity.WARNING,
        "a message waits for longer than all its attempts can take",
        "its effect is missing",
        "look at its error, and at whether a worker is running",
    )

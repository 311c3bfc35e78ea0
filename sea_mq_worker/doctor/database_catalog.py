"""Catalog of PostgreSQL's findings."""

from sea_mq_worker.doctor.finding import REFUSES, Kind, error, note, warning


class DatabaseKind(Kind):
    """Findings from PostgreSQL alone."""

    # connection
    DATABASE_UNREACHABLE = error(
        "PostgreSQL does not answer, or not in time",
        "nothing is published or received",
        "start PostgreSQL, check its load, or correct SEA_MQ_DATABASE_URL",
    )
    DATABASE_READ_ONLY = error(
        "PostgreSQL is read-only: a standby, or default_transaction_read_only is on",
        "nothing is published or received",
        "name the primary in SEA_MQ_DATABASE_URL, or set default_transaction_read_only off",
    )
    DATABASE_REFUSES = error(
        "PostgreSQL refuses the login, TLS or a statement",
        REFUSES,
        "correct SEA_MQ_DATABASE_URL, or the setting that the message names",
    )
    SCHEMA_VERSION = error(
        "the schema is missing, too old, or too new for this worker",
        REFUSES,
        "run `migrate`, or run the worker version of that schema",
    )
    SCHEMA_OWNER = error(
        "the tables belong to another context",
        f"{REFUSES}: it would publish under the wrong subjects",
        "correct SEA_MQ_CONTEXT, or set SEA_MQ_DATABASE_SCHEMA to a schema of its own",
    )
    POOLER_UNDECLARED = error(
        "a pooler in transaction mode, and SEA_MQ_DATABASE_POOLER is not set",
        "prepared statements and session settings are lost between transactions",
        "set SEA_MQ_DATABASE_POOLER=true, or connect directly",
    )
    NOTIFY_LOST = warning(
        "a connection to the URL does not receive its own notification",
        "the worker finds events by polling, up to SEA_MQ_OUTBOX_POLL_SECONDS late",
        "connect directly, or set SEA_MQ_OUTBOX_NOTIFY=false",
    )
    DATABASE_CLOCK = warning(
        "the clocks of PostgreSQL and this machine differ by more than a minute",
        "events of this machine's producers fail as FUTURE_EVENT or are late; log times mislead",
        "synchronize both machines with the same time server",
    )
    # privileges and settings
    RIGHTS_MISSING = error(
        "the login lacks a privilege that the worker needs",
        "the worker does not start, or pauses a side",
        "grant the privilege, preferably with sql/roles.sql",
    )
    RIGHTS_OF_A_READER = warning(
        "the login is read-only, like the reader of sql/roles.sql",
        "the worker cannot run with this login",
        "also run doctor with the worker's login",
    )
    FSYNC_OFF = error(
        "PostgreSQL does not flush writes to disk: fsync is off",
        "a crash of its machine loses commits and may corrupt the database",
        "switch fsync on; restore a backup if the machine crashed meanwhile",
    )
    SYNCHRONOUS_COMMIT_OFF = warning(
        "PostgreSQL confirms commits before they are on disk: synchronous_commit is off",
        (
            "a crash of the server loses the latest commits: the worker repeats their work, perhaps "
            "outside the deduplication window"
        ),
        "switch synchronous_commit on, also for the service",
    )
    STANDBY_MISSING = error(
        "commits wait for a standby, and none is connected",
        "every write hangs, including the service's",
        "start the standby, or remove it from synchronous_standby_names",
    )
    DATABASE_ENCODING = warning(
        "the encoding of the database is not UTF8",
        "PostgreSQL refuses events and errors with other characters",
        "restore a dump into a database WITH ENCODING 'UTF8'",
    )
    TRIGGERS_OFF = error(
        "triggers do not run: session_replication_role is replica",
        "no rule of the lifecycle is enforced, and no insert wakes the worker",
        "set session_replication_role to origin",
    )
    TWO_PHASE_COMMIT = note(
        "max_prepared_transactions is above 0",
        "PREPARE TRANSACTION fails after an insert into the outbox",
        "in such producers, run SET LOCAL sea_mq.notify = off before the insert",
    )
    SESSION_TIMEOUTS = warning(
        "transaction_timeout is shorter than SEA_MQ_DATABASE_TIMEOUT_SECONDS",
        "connections break without a fault",
        "reset it for the worker's role",
    )
    CONNECTIONS_TOO_FEW = error(
        "fewer connections are allowed than a worker needs",
        "a worker does not start",
        "raise the limit of the role, the database or the server",
    )
    CONNECTIONS_SHORT = warning(
        "fewer connections are free than a worker may open",
        "under load statements fail",
        "raise the limit, or lower SEA_MQ_DATABASE_POOL_MAX",
    )
    # tables
    TABLE_LOCKED = error(
        "a session blocks a table longer than the statement time-out",
        "nothing is published or received",
        "end the transaction in its program, or terminate its session",
    )
    ROW_SECURITY = error(
        "row-level security limits which rows the login sees",
        "the worker never publishes or handles hidden rows",
        "disable row-level security, or give the login BYPASSRLS",
    )
    TABLE_UNLOGGED = error(
        "a table is unlogged", "PostgreSQL empties it after a crash", "set the table LOGGED"
    )
    INDEX_MISSING = error(
        "an index is missing",
        "statements that need the index read the whole table",
        "create the index again",
    )
    INDEX_INVALID = error(
        "an index is invalid, as after a failed CREATE INDEX CONCURRENTLY",
        "the index slows writes and speeds up nothing",
        "rebuild the index",
    )
    TRIGGER_MISSING = error(
        "a trigger is missing",
        "a rule of the lifecycle is not enforced, or no insert wakes the worker",
        "create the trigger again",
    )
    TRIGGER_DISABLED = error(
        "a trigger is disabled",
        "a rule of the lifecycle is not enforced, or no insert wakes the worker",
        "enable the trigger",
    )
    BESIDE_OLD_WORKER = warning(
        "SDS-047's own statements may settle events beside this worker",
        "events may be published out of order, before they are due, or without a place in the stream",
        "end the old worker, then run `migrate --end-old-worker`",
    )
    TRIGGER_FOREIGN = warning(
        "a trigger of somebody else runs before each change of a row",
        "it can change an event behind the rules, and each claim reads the whole payload to measure it again",
        "let it run AFTER, or at the insert alone",
    )
    PUBLICATION_BLOCKS = error(
        "a publication and the replica identity of a table do not fit",
        "PostgreSQL refuses each change of a row: nothing is published or received",
        (
            "set REPLICA IDENTITY USING INDEX of the primary key, or publish generated columns "
            "(publish_generated_columns = stored); with a column list or a filter: have the ID in the list, "
            "filter by it alone, or publish inserts only"
        ),
    )
    NOTIFICATIONS_FULL = warning(
        "the server's queue of notifications is more than half full",
        "from 90 % on no event wakes the worker; when it is full, a COMMIT with another NOTIFY fails",
        "end the transaction of the session that listens and does not read",
    )
    MIGRATION_ALTERED = error(
        "an applied migration differs from this version's file",
        "the schema may not be the one that this worker knows",
        "fix the schema's other findings, then record the file's SHA-256",
    )
    FUNCTION_DIFFERS = error(
        "a function is missing, or its body or search path differs",
        "a rule of the lifecycle is not enforced, or differs",
        "create it again; if it was missing, also run sql/roles.sql again",
    )
    CONSTRAINT_DIFFERS = error(
        "a constraint is missing or differs",
        "producers can write rows that no worker can finish",
        "fix the rows that violate it, and create it again",
    )
    AUTOVACUUM_OFF = warning(
        "autovacuum or track_counts is off", "dead rows stay, and each claim scans them", "switch it on"
    )
    DEAD_ROWS = warning(
        "a table has five times the dead rows that start an autovacuum",
        "claims slow down and the table grows",
        "vacuum the table, and look for old transactions",
    )
    TRANSACTION_OPEN_LONG = warning(
        "a transaction has been open for more than five leases",
        "vacuum removes no row that died since: claims slow down",
        "end the transaction in its program, or terminate its session",
    )
    TRANSACTION_PREPARED_LONG = warning(
        "a prepared transaction has been open for more than five leases",
        "vacuum removes no row that died since, and the locks survive a restart",
        "commit the transaction or roll it back in its database",
    )
    LANE_HELD = warning(
        "a session that is no worker's holds the lock of the lane with ordering keys",
        "all workers claim events with ordering keys, and in turns: publishing is slower",
        "give that program's advisory lock another number, or terminate its session",
    )
    SLOT_INACTIVE = warning(
        "an inactive replication slot retains WAL",
        "the disk fills up, and PostgreSQL stops",
        "start its consumer, or drop the slot",
    )
    # rows
    OUTBOX_UNATTENDED = error(
        "an event has been due for a minute, and no worker is connected",
        "nothing is published",
        "start the worker",
    )
    OUTBOX_UNCLAIMED = warning(
        "an event has been due for 0.75 leases, and no connected worker has claimed for half a lease",
        "nothing is published",
        "read the worker's /readyz for the reason; restart a worker that does not answer",
    )
    OUTBOX_BEHIND = warning(
        "an event has been due for more than five leases",
        "events come late",
        "read the worker's /readyz for the reason",
    )
    OUTBOX_AHEAD = warning(
        "open events have times in the future: PostgreSQL's clock was set back",
        "ages and times mislead",
        "run a worker: it sends them within 20 s; synchronize the server's clock",
    )
    OUTBOX_FAILING = warning(
        "waiting events have an error",
        "they and later events of their keys are late",
        "fix the cause in the error",
    )
    OUTBOX_DEAD = warning(
        "events are DEAD",
        "the worker does not publish them",
        "fix the causes, then run `outbox replay`, or `outbox discard` for unsendable ones",
    )
    OUTBOX_UNPRUNED = warning(
        "events were published more than 30 days ago",
        "the table grows without limit",
        "run `prune` or `pipeline archive` regularly",
    )
    SEQUENCE_BEHIND = error(
        "a sequence is behind its table, as after a copy of rows",
        "new events overtake older ones of their key; operators' commands fail",
        "set it to the table's highest number; check events written meanwhile",
    )
    SEQUENCE_DIFFERS = error(
        "a sequence has other parameters",
        "sessions get numbers in blocks: new events overtake older ones of their key",
        "set the parameters again",
    )
    PARTITIONS_SHORT = warning(
        "partitions exist for less than half of SEA_MQ_OUTBOX_PARTITION_DAYS ahead",
        "a day's events go to the default partition and block that day's",
        "start a worker, or search its log for `partitions_not_made`",
    )
    DEFAULT_PARTITION_USED = warning(
        "the default partition holds events, or has held some",
        "PostgreSQL reads it for each new partition; above 1 GB the worker creates none",
        "let producers use UUIDv7; after a `prune`, free its disk space",
    )
    INBOX_ORPHANS = warning(
        "messages wait whose consumer is not in SEA_MQ_CONSUMERS",
        "this worker does not handle them",
        "add the consumer until none of its messages waits",
    )
    INBOX_FAILING = warning(
        "waiting messages have an error",
        "after the last attempt they are dead-lettered",
        "fix the cause in the error, usually in the handler",
    )
    INBOX_STUCK = warning(
        "a message waits longer than all its attempts can take",
        "its effect is missing",
        "check its error, and whether a worker is running",
    )

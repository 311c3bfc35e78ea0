"""Catalog of the findings of NATS, and of NATS with PostgreSQL."""

from sea_mq_worker.doctor.finding import REFUSES, Kind, error, note, warning


class BrokerKind(Kind):
    """Findings from NATS alone."""

    BROKER_UNREACHABLE = error(
        "NATS or its JetStream does not answer, or has no leader",
        "nothing is published or received",
        "start NATS with JetStream, or correct SEA_MQ_NATS_URL",
    )
    BROKER_REFUSES = error(
        "NATS refuses the login, TLS or a request",
        "the worker refuses to start, or doctor could not check this part",
        "correct SEA_MQ_NATS_*, or grant the missing permission as in deploy/nats-accounts.conf",
    )
    STREAM_UNAVAILABLE = error(
        "a stream or consumer does not answer: its servers are down, or it has no leader",
        "nothing is published or received",
        "start its servers; they elect a leader within seconds",
    )
    DEFINITIONS_INVALID = error(
        "a definition file of streams and consumers is invalid",
        "`streams apply` does nothing, and doctor compared no streams",
        "correct or remove the named file, or correct SEA_MQ_STREAMS_FOLDER",
    )
    TOPOLOGY_DIFFERS = error(
        "a stream or consumer is missing or differs from its definition",
        "it does not behave as defined",
        "apply the definitions, or correct them",
    )
    STREAM_MISSING = error(
        "a setting's stream exists neither on the server nor as a file",
        REFUSES,
        "add its file to SEA_MQ_STREAMS_FOLDER and apply, or correct the setting",
    )
    STREAM_VOLATILE = error(
        "a stream acknowledges before it stores: storage memory, or persist_mode async",
        "acknowledged messages may be lost with the server's process",
        "recreate the stream with storage file and without persist_mode async",
    )
    STREAM_UNUSABLE = error(
        "a stream is sealed or acknowledges nothing",
        "nothing is published",
        "apply the files; delete a sealed stream first, or name another stream",
    )
    SUBJECTS_UNCOVERED = error(
        "the stream does not take every subject of the worker",
        "the stream refuses events or dead letters of the other subjects",
        "add the subjects to the stream and apply",
    )
    SUBJECTS_ELSEWHERE = error(
        "another stream takes subjects of this worker",
        "the events fail",
        "give each context its own subjects",
    )
    STREAM_SINGLE_COPY = warning(
        "a stream of a cluster has one copy",
        "the stream is lost with its server's disk",
        "set SEA_MQ_STREAM_REPLICAS to 3, or remove it, and apply",
    )
    STREAM_REPLICA_OFFLINE = warning(
        "a replica of a stream is offline or has no leader",
        "the next server that fails stops the stream",
        "restart the server, or move the replica",
    )
    SYNC_UNKNOWN = note(
        "streams have one copy, and the server does not report its sync_interval",
        (
            "by default nats-server flushes to disk every two minutes: a crash of its machine loses messages "
            "acknowledged since"
        ),
        (
            "set `sync_interval: always` in nats-server's configuration and SEA_MQ_OUTBOX_PUBLISH_MODE to "
            "`atomic`, or set SEA_MQ_STREAM_REPLICAS to 3"
        ),
    )
    STREAM_FULL = error(
        "a stream is full, with discard new",
        "events wait in the outbox, dead letters hold their messages up",
        "raise max_bytes or max_msgs and apply, or remove unneeded messages",
    )
    STREAM_NEARLY_FULL = warning(
        "a stream is 80 % full",
        "a full stream refuses new messages",
        "raise max_bytes or max_msgs, or remove unneeded messages",
    )
    STREAM_DISCARDS_OLD = warning(
        "a stream has discard old, or max_msgs_per_subject",
        "a full stream drops its oldest events or dead letters unread",
        "set discard to new and max_msgs_per_subject to -1, and apply",
    )
    STREAM_DROPS_READ = error(
        "a stream's retention is not limits",
        "it drops read messages before all readers have them",
        "recreate the stream with retention limits",
    )
    DEAD_LETTERS_SHORT_LIVED = warning(
        "the stream keeps dead letters for less than a week",
        "dead letters may expire before somebody looks",
        "raise max_age of the stream and apply",
    )
    DEAD_LETTERS = note(
        "the stream has dead letters",
        "their messages had no effect",
        "check their reasons, then run `dlq redrive`",
    )
    CONSUMER_MISSING = error(
        "a consumer of SEA_MQ_CONSUMERS exists neither on the server nor as a file",
        "nothing is received",
        "add its file to SEA_MQ_STREAMS_FOLDER and apply, or correct SEA_MQ_CONSUMERS",
    )
    CONSUMER_UNFIT = error(
        (
            "a consumer pushes, does not use explicit acknowledgement, omits bodies, has priority groups, or "
            "max_expires below 100 ms"
        ),
        "nothing is received from it",
        (
            "delete it and apply its file with ack_policy explicit, without deliver_subject, headers_only, "
            "priority_policy and max_expires"
        ),
    )
    CONSUMER_PASSING = warning(
        "a consumer has inactive_threshold or mem_storage set",
        "it ends with its worker or server; then messages are redelivered or skipped, by its deliver_policy",
        "set inactive_threshold to 0 in its file and apply; for mem_storage delete it first",
    )
    CONSUMER_FILTER = error(
        "a consumer's filter matches no subject of its stream",
        "nothing is received",
        "correct filter_subject",
    )
    MESSAGES_MISSED = error(
        "messages never reach a consumer: limits, a purge or a lost disk took them, or it begins behind them",
        "the messages have no effect",
        "have their sender replay them, and raise the stream's limits",
    )
    CONSUMER_PAUSED = warning(
        "a consumer is paused", "nothing is received until the pause ends", "resume the consumer"
    )
    CONSUMER_STUCK = warning(
        "max_ack_pending messages are in flight, and none was delivered or acknowledged for two ack_waits",
        "the consumer delivers no more messages",
        "start the worker, or check its /readyz and the handler",
    )
    CONSUMER_BEHIND = warning(
        "the oldest message that waits for its delivery is older than two ack_waits",
        "messages are late",
        "make the handler faster, raise SEA_MQ_HANDLER_CONCURRENCY and max_ack_pending, or run more workers",
    )
    CONSUMER_UNATTENDED = warning(
        "messages wait, and no worker has pulled for two ack_waits",
        "the messages are late",
        "start the worker, or read its /readyz for the reason",
    )


class PairKind(Kind):
    """Findings from a comparison of NATS with PostgreSQL or with the settings."""

    WINDOW_BELOW_PUBLISH = error(
        "duplicate_window is not longer than the publish time-out",
        REFUSES,
        "raise duplicate_window and apply, or lower SEA_MQ_OUTBOX_PUBLISH_TIMEOUT_SECONDS",
    )
    WINDOW_BELOW_LEASE = warning(
        "duplicate_window is shorter than lease and publish time-out together",
        "after a crash the worker searches the stream before it sends again",
        "raise duplicate_window and apply, or lower SEA_MQ_OUTBOX_LEASE_SECONDS",
    )
    WINDOW_BELOW_BACKOFF = warning(
        "duplicate_window is shorter than longest backoff, lease and publish time-out together",
        "after a long backoff the worker searches the stream before it sends again",
        "raise duplicate_window and apply, or lower SEA_MQ_OUTBOX_BACKOFF_MAX_SECONDS",
    )
    WINDOW_DELAYS_REPLAY = note(
        "duplicate_window is longer than a day",
        ("a replay waits until the window has passed, and the server needs about 105 bytes of memory per id"),
        "lower duplicate_window and apply",
    )
    ACK_WAIT_SHORT = error(
        "ack_wait, or the first backoff in its place, is not longer than the handler time-out",
        f"{REFUSES}, or messages are redelivered while the handler works on them",
        "raise ack_wait, remove backoff and apply, or lower SEA_MQ_HANDLER_TIMEOUT_SECONDS",
    )
    MAX_DELIVER_LOW = error(
        "max_deliver is not above SEA_MQ_INBOX_ATTEMPTS_MAX",
        f"{REFUSES}: the server would give messages up first",
        "raise max_deliver and apply, or lower SEA_MQ_INBOX_ATTEMPTS_MAX",
    )
    MAX_ACK_PENDING_LOW = warning(
        "max_ack_pending is below SEA_MQ_HANDLER_CONCURRENCY",
        "fewer calls run than the setting allows",
        "raise max_ack_pending and apply, or lower SEA_MQ_HANDLER_CONCURRENCY",
    )
    RETRIES_OUTLIVE_STREAM = warning(
        "the attempts of a message can take longer than its stream keeps it",
        "a message that keeps failing expires before the worker dead-letters it",
        "raise max_age of the stream, or lower SEA_MQ_INBOX_ATTEMPTS_MAX or _BACKOFF_MAX_SECONDS",
    )
    BROKER_CLOCK = warning(
        "the clocks of NATS and PostgreSQL differ by more than a minute",
        "`prune`, `replay` and the search for an ID compare times of both clocks",
        "synchronize both machines with the same time server",
    )
    EVENT_TOO_LARGE = warning(
        "a waiting event is larger than its stream or server accepts",
        "the event becomes DEAD",
        "raise max_msg_size or max_payload, or publish a reference",
    )
    EVENTS_LOST = error(
        "the stream lacks events of PUBLISHED rows: it was recreated, restored, failed over or purged",
        "consumers never receive them; `pipeline reconcile` lists each",
        "run `pipeline reconcile --requeue`, or prune the rows",
    )
    DELIVERIES_UNRECORDED = note(
        (
            "more messages are in flight than are unsettled in the inbox, and none was delivered for two "
            "SEA_MQ_DATABASE_TIMEOUT_SECONDS"
        ),
        "no worker has the others: the server delivers them again after ack_wait, or the delay of their NAK",
        (
            "wait for ack_wait while the worker runs; `nats stream get STREAM SEQUENCE` shows a message, "
            "`inbox list` those that a worker has"
        ),
    )
    MESSAGE_LOST = warning(
        "a message without an effect is no longer in its stream",
        "it has no effect",
        "have its sender send it again with the same id",
    )
    INBOX_PRUNED_EARLY = warning(
        "`prune` deleted inbox rows whose messages a stream can still deliver",
        "a redelivered message has its effect again",
        "run `prune` without --deliverable",
    )

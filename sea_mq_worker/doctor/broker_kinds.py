"""The words for what can be wrong with NATS, and between it and PostgreSQL."""

from sea_mq_worker.doctor.catalog import REFUSES, Kind
from sea_mq_worker.doctor.finding import Severity


class BrokerKind(Kind):
    """Found by NATS alone."""

    BROKER_UNREACHABLE = (
        Severity.ERROR,
        "NATS or its JetStream does not answer, or has no leader",
        "nothing is published or received",
        "start NATS with JetStream, of a cluster more than half of its servers, or correct SEA_MQ_NATS_URL",
    )
    BROKER_REFUSES = (
        Severity.ERROR,
        "NATS refuses the login, TLS or a question",
        "the worker refuses to start, or what was refused is not examined",
        "correct SEA_MQ_NATS_*, or grant what is missing as in deploy/nats-accounts.conf",
    )
    STREAM_UNAVAILABLE = (
        Severity.ERROR,
        "a stream or consumer does not answer: its servers are away, or it has no leader",
        "nothing is published to it or received from it",
        "start its servers; a new leader is there within seconds",
    )
    DEFINITIONS_INVALID = (
        Severity.ERROR,
        "a file of streams and consumers cannot be used",
        "`streams apply` does nothing, and streams were not compared with their files",
        "correct or remove the file that is named, or correct SEA_MQ_STREAMS_FOLDER",
    )
    TOPOLOGY_DIFFERS = (
        Severity.ERROR,
        "a stream or consumer is missing or not as its file says",
        "what the files promise does not hold",
        "apply the files, or correct them",
    )
    STREAM_MISSING = (
        Severity.ERROR,
        "a stream that a setting names exists neither on the server nor as a file",
        REFUSES,
        "add its file to SEA_MQ_STREAMS_FOLDER and apply, or correct the setting",
    )
    STREAM_FORGETFUL = (
        Severity.ERROR,
        "a stream acknowledges before it stores: storage memory, or persist_mode async",
        "what it confirmed may be lost with its server's process",
        "make the stream anew with storage file and without persist_mode async",
    )
    STREAM_USELESS = (
        Severity.ERROR,
        "a stream is sealed or acknowledges nothing",
        "nothing is published",
        "apply the files; a sealed stream has to be deleted first, or another one named",
    )
    SUBJECTS_UNCOVERED = (
        Severity.ERROR,
        "the own stream does not take every subject that the worker publishes to it",
        "events or dead letters of the others are refused again and again",
        "add them to the stream's subjects and apply",
    )
    SUBJECTS_ELSEWHERE = (
        Severity.ERROR,
        "another stream takes subjects of this worker",
        "its acknowledgement is not believed, and the events fail",
        "give each context subjects of its own",
    )
    STREAM_SINGLE_COPY = (
        Severity.WARNING,
        "a stream of a cluster has one copy",
        "it is gone with its server's disk, and away with its server",
        "set SEA_MQ_STREAM_REPLICAS to 3, or leave it out, and apply",
    )
    STREAM_REPLICA_OFFLINE = (
        Severity.WARNING,
        "a replica of a stream is offline or has no leader",
        "the next server that fails stops the stream",
        "start the server again, or move the replica",
    )
    SYNC_UNKNOWN = (
        Severity.INFO,
        "streams have one copy, and whether the server writes them through cannot be asked of it",
        (
            "by default nats-server writes through every two minutes: a crash of its machine loses what was "
            "acknowledged since"
        ),
        (
            "set `sync_interval: always` in nats-server's configuration, or have three copies by "
            "SEA_MQ_STREAM_REPLICAS"
        ),
    )
    STREAM_FULL = (
        Severity.ERROR,
        "a stream is full, and refuses what is new: discard is new",
        "events wait in the outbox, dead letters hold their messages up",
        "raise max_bytes or max_msgs and apply, or remove what nobody needs; work then goes on by itself",
    )
    STREAM_NEARLY_FULL = (
        Severity.WARNING,
        "a stream is filled to four fifths",
        "a full one refuses what is new; events wait in the outbox, dead letters hold their messages up",
        "raise max_bytes or max_msgs, or remove what nobody needs",
    )
    STREAM_DISCARDS_OLD = (
        Severity.WARNING,
        "a full stream drops its oldest messages: discard is old, or max_msgs_per_subject is set",
        "events or dead letters go that nobody has seen",
        "set discard to new and max_msgs_per_subject to -1, and apply",
    )
    STREAM_DROPS_READ = (
        Severity.ERROR,
        "a stream drops what was read, or what nobody waits for: retention is not limits",
        "events or dead letters go before others see them, or before anybody does",
        "make the stream anew with retention limits",
    )
    DEAD_LETTERS_SHORT_LIVED = (
        Severity.WARNING,
        "dead letters are kept for less than a week",
        "they may be gone before somebody looks",
        "raise max_age of the stream and apply",
    )
    DEAD_LETTERS = (
        Severity.INFO,
        "there are dead letters",
        "messages had no effect",
        "look at their reasons, then `dlq redrive` them",
    )
    CONSUMER_MISSING = (
        Severity.ERROR,
        "a consumer of SEA_MQ_CONSUMERS exists neither on the server nor as a file",
        "nothing is received",
        "add its file to SEA_MQ_STREAMS_FOLDER and apply, or correct SEA_MQ_CONSUMERS",
    )
    CONSUMER_UNFIT = (
        Severity.ERROR,
        "a consumer pushes, wants no acknowledgement of each message, or leaves bodies out",
        "the worker refuses to start, or dead-letters every message",
        "delete it and apply its file without deliver_subject and headers_only, with ack_policy explicit",
    )
    CONSUMER_PASSING = (
        Severity.WARNING,
        "a consumer does not outlast its worker or server: inactive_threshold or mem_storage is set",
        "how far it was is forgotten: messages come again, or are passed over, as its deliver_policy says",
        "set inactive_threshold to 0 in its file and apply; for mem_storage delete it first",
    )
    CONSUMER_FILTER = (
        Severity.ERROR,
        "a consumer's filter matches no subject of its stream",
        "nothing is received; the server takes such a filter without a word",
        "correct filter_subject",
    )
    MESSAGES_MISSED = (
        Severity.ERROR,
        "messages left their stream before a consumer was given them",
        "they have no effect, and nothing delivers them",
        "have their sender replay them, and raise max_age, max_bytes or max_msgs of the stream",
    )
    CONSUMER_PAUSED = (
        Severity.WARNING,
        "a consumer is paused",
        "nothing is received until it ends",
        "resume it",
    )
    CONSUMER_STUCK = (
        Severity.WARNING,
        "a consumer has max_ack_pending messages out, and none was acknowledged for two ack_waits",
        "nothing more is delivered",
        "start the worker, or look at its /readyz and at the handler",
    )
    CONSUMER_UNATTENDED = (
        Severity.WARNING,
        "messages wait at a consumer, and nobody has fetched for two ack_waits",
        "they come late",
        "start the worker, or look at its /readyz for why it does not pull",
    )


class PairKind(Kind):
    """Found by comparing one with the other, or with the settings."""

    WINDOW_BELOW_PUBLISH = (
        Severity.ERROR,
        "duplicate_window is not longer than the publish time-out",
        REFUSES,
        "raise duplicate_window and apply, or lower SEA_MQ_OUTBOX_PUBLISH_TIMEOUT_SECONDS",
    )
    WINDOW_BELOW_LEASE = (
        Severity.WARNING,
        "duplicate_window is shorter than lease and publish time-out together",
        "after a crash an event is searched for in the stream before it is sent again",
        "raise duplicate_window and apply, or lower SEA_MQ_OUTBOX_LEASE_SECONDS",
    )
    WINDOW_BELOW_BACKOFF = (
        Severity.WARNING,
        "duplicate_window is shorter than the longest backoff, lease and publish time-out together",
        "an event whose retry waits long is searched for in the stream before it is sent again",
        "raise duplicate_window and apply, or lower SEA_MQ_OUTBOX_BACKOFF_MAX_SECONDS",
    )
    WINDOW_DELAYS_REPLAY = (
        Severity.INFO,
        "duplicate_window is longer than a day",
        (
            "a replay of what the stream still remembers waits until it has forgotten that copy, "
            "and the server remembers about 105 bytes an id"
        ),
        "lower duplicate_window and apply, if replays are wanted sooner",
    )
    ACK_WAIT_SHORT = (
        Severity.ERROR,
        "ack_wait, or the first backoff in its place, is not longer than a handler call may take",
        f"{REFUSES}, or messages are delivered again while they are handled",
        "raise ack_wait, leave backoff out and apply, or lower SEA_MQ_HANDLER_TIMEOUT_SECONDS",
    )
    MAX_DELIVER_LOW = (
        Severity.ERROR,
        "max_deliver is not above SEA_MQ_INBOX_ATTEMPTS_MAX",
        f"{REFUSES}: the server would give messages up before the worker dead-letters them",
        "raise max_deliver and apply, or lower SEA_MQ_INBOX_ATTEMPTS_MAX",
    )
    MAX_ACK_PENDING_LOW = (
        Severity.WARNING,
        "max_ack_pending is below SEA_MQ_HANDLER_CONCURRENCY",
        "fewer messages are handled at once than the setting says",
        "raise max_ack_pending and apply, or lower SEA_MQ_HANDLER_CONCURRENCY",
    )
    RETRIES_OUTLIVE_STREAM = (
        Severity.WARNING,
        "the attempts of a message can take longer than its stream keeps it",
        "a message that fails for long is gone before it is dead-lettered",
        "raise max_age of the stream, or lower SEA_MQ_INBOX_ATTEMPTS_MAX or _BACKOFF_MAX_SECONDS",
    )
    BROKER_CLOCK = (
        Severity.WARNING,
        "NATS's clock and PostgreSQL's differ by more than a minute",
        "`prune`, `replay` and the search for an id reckon with both",
        "let both machines follow the same time server",
    )
    EVENT_TOO_LARGE = (
        Severity.WARNING,
        "an event that waits is larger than its stream or server takes",
        "it ends DEAD",
        "raise max_msg_size of the stream or max_payload of the server, or publish a reference",
    )
    EVENTS_LOST = (
        Severity.ERROR,
        "the stream has lost events whose rows are PUBLISHED: it was made anew, set back, or failed over",
        "nobody receives them; `pipeline reconcile` names each",
        "let `pipeline reconcile` send them again, or prune the rows where they are not wanted",
    )
    MESSAGE_LOST = (
        Severity.WARNING,
        "a message without an effect is no longer in its stream",
        "nothing delivers it again",
        "have it sent again under its id",
    )
    INBOX_PRUNED_EARLY = (
        Severity.WARNING,
        "inbox rows were pruned whose messages a stream can still deliver",
        "a message that comes again has its effect again",
        "leave --deliverable out when pruning; do not set the consumer back behind what was pruned",
    )

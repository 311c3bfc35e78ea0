-- Takes over the messages, at the end of the migration.
ALTER TABLE inbox_messages DROP CONSTRAINT "DUPLICATE_MESSAGE";

INSERT INTO inbox_messages (message_id, subject, received_at, processed_at, attempts, last_error)
SELECT message_id, subject, received_at,
       CASE WHEN processed_at IS NOT NULL THEN greatest(processed_at, received_at) END, greatest(attempts, 0), last_error
  FROM sds047_inbox_messages;

ALTER TABLE inbox_messages ADD CONSTRAINT "DUPLICATE_MESSAGE" PRIMARY KEY (message_id);

"""The job ``archive``: move published events from the outbox table to the lake."""

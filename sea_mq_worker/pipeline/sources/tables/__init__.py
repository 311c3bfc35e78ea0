"""The data sources ``outbox`` and ``inbox``: the tables, in ranges of pages under one snapshot."""

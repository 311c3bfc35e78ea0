"""The schema: migrations, owner, partitions, and what a database actually has."""

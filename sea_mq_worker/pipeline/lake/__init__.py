"""The lake: Delta tables that Spark's tasks write and the driver commits, without a Java library."""

"""The lake: Delta tables, written by Spark's tasks and committed by the driver, without a jar."""

"""The data pipeline on Apache Spark: sources, a lake of Delta tables, and the jobs over both.

Needs the extra ``spark``. Nothing outside this package imports pyspark.
"""

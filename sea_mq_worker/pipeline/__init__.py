"""The data pipeline on Apache Spark with Delta Lake: a source, a lake, and the jobs over both.

Needs the extra ``spark``. Nothing outside this package imports pyspark. All jobs take a Spark session first.
"""

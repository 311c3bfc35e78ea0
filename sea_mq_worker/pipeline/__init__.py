"""The data pipeline on Apache Spark: sources, a lake of Delta tables, and the jobs over both.

Needs the extra ``spark``. Nothing outside this package imports pyspark.
"""

from contextlib import suppress

_MAJOR_MIN = 4

with suppress(ModuleNotFoundError):
    from pyspark.version import __version__ as _spark_version

    if int(_spark_version.partition(".")[0]) < _MAJOR_MIN:
        raise ImportError(
            f"PySpark {_spark_version} is too old, because Spark has data sources in Python since version"
            f" {_MAJOR_MIN}: pip install 'pyspark>={_MAJOR_MIN},<{_MAJOR_MIN + 1}'"
        )

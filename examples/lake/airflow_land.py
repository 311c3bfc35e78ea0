"""Land the streams every five minutes with Airflow; needs ``apache-airflow-providers-apache-spark``.

The connection ``spark_default`` names the master. PROGRAM is the package that docs/how-to/pipeline.md makes
for nodes that have only Spark, in a folder that all of them see.
"""

from datetime import UTC, datetime

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

PROGRAM = "/srv/sea-mq-worker/package/sea_mq_worker/__main__.py"

with DAG(
    "sea_mq_land",
    schedule="*/5 * * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2},  # a run that failed or was killed is continued by the next one
) as dag:
    SparkSubmitOperator(
        task_id="land",
        application=PROGRAM,
        application_args=["pipeline", "land", "--lake", "s3://bucket/lake", "--json"],
        packages="io.delta:delta-spark_4.2_2.13:4.4.0,org.postgresql:postgresql:42.7.7",
        conf={
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        },
    )

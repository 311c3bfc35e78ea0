"""Land the streams every five minutes with Dagster: ``dagster dev -f dagster_land.py``; needs ``dagster``."""

import json
import subprocess

from dagster import Definitions, MaterializeResult, ScheduleDefinition, asset, define_asset_job

LAND = ("sea-mq-worker", "pipeline", "land", "--json")


@asset
def lake() -> MaterializeResult:
    """Land what the streams hold; a run that failed or was killed is continued by the next one."""
    done = subprocess.run(LAND, check=True, stdout=subprocess.PIPE, text=True)
    landed = json.loads(done.stdout)
    return MaterializeResult(metadata={"messages": landed["rows"], "new events": landed["events"]})


land = define_asset_job("land", selection=[lake])
definitions = Definitions(
    assets=[lake], jobs=[land], schedules=[ScheduleDefinition(job=land, cron_schedule="*/5 * * * *")]
)

"""Each number of an advisory lock has one purpose: two of them would keep each other waiting."""

import re
import subprocess
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"\b71[78]\d\b|(?<=lock\()\d+|(?<=lock_shared\()\d+")
_NOTIFY = {"sql/migrations/0001_schema.sql", "sql/migrations/0002_foreign_hands.sql"}
PURPOSES = {
    "7177": {*_NOTIFY, "sea_mq_worker/outbox/wakeup.py"},
    "7179": {*_NOTIFY, "sea_mq_worker/outbox/wakeup.py"},
    "7180": {"sql/migrations/0001_schema.sql"},
    "7181": {"sql/queries/pipeline_archive.sql"},
    "7183": {"sea_mq_worker/postgres/migrations.py"},
    "7184": {
        "sea_mq_worker/postgres/sessions.py",
        "sql/migrations/0001_schema.sql",
        "sql/queries/inbox.sql",
        "sql/queries/operators.sql",
        "sql/queries/outbox.sql",
        "sql/queries/sessions.sql",
    },
}
"""Files by number: both wake-ups, new partitions, archive, migrations, sessions."""


def test_a_number_of_an_advisory_lock_has_one_purpose() -> None:
    listed = ["git", "ls-files", "sql", "sea_mq_worker"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    found = defaultdict(set)
    for name in names:
        if Path(name).suffix in {".py", ".sql"} and (ROOT / name).is_file():
            for number in NUMBER.findall((ROOT / name).read_text()):
                found[number].add(name)
    assert found == PURPOSES

"""Documents name no setting that is not there."""

import re

from sea_mq_worker.settings import CONFIG_VARIABLE, ENV_PREFIX, Settings
from tests.support.documents import ROOT, documents


def test_every_setting_that_is_named_exists() -> None:
    known = {f"{ENV_PREFIX}{name.upper()}" for name in Settings.model_fields} | {CONFIG_VARIABLE}
    named = re.compile(rf"\b{ENV_PREFIX}\w*[A-Z]\b")
    found = {(name, word) for name in documents() for word in named.findall((ROOT / name).read_text())}
    assert {(name, word) for name, word in found if word not in known} == set()

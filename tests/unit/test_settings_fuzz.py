"""Any settings file is taken, or refused by a text that names each key and quotes no secret."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sea_mq_worker.settings import CONFIG_VARIABLE, ENV_PREFIX, Settings, SettingsError, load_settings

SECRET = "canary-7f3a"
NASTY = (
    *("", "inf", "A/b/c", "public; DROP", "http://[::1", "/nonexistent/file", "\r\n", "\x00", "x" * 5000),
    *(f"http://{SECRET}:{SECRET}@h:b/", f"postgresql://u:{SECRET}@h:x/d", f"nats://u:{SECRET}@h:99999"),
)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=30) | st.sampled_from(NASTY)
NUMBERS = st.integers(-(10**30), 10**30).map(str) | st.floats(allow_nan=True).map(repr)
VALUES = NUMBERS | st.sampled_from(["true", "[]", "{}", "1979-05-27", "[[", "'''", "0x7f"])


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    entries=st.dictionaries(
        st.sampled_from([*Settings.model_fields, "contxt", "a.b"]), VALUES | TEXTS.map(json.dumps), max_size=6
    )
)
def test_any_settings_file_is_taken_or_refused_without_its_secrets(
    entries: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "worker.toml"
    file.write_text("".join(f"{key} = {value}\n" for key, value in entries.items()))
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    refusal = ""
    try:
        load_settings()
    except SettingsError as error:
        refusal = str(error) or "no reason"
    assert all(line.startswith(ENV_PREFIX) for line in refusal.splitlines())
    assert SECRET not in refusal

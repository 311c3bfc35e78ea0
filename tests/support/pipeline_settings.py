"""Settings that Spark's Python workers find: their environment is that of the session's start."""

from pathlib import Path

import pytest

from sea_mq_worker.settings import CONFIG_VARIABLE, Settings, load_settings


def write_settings(path: Path, monkeypatch: pytest.MonkeyPatch, **given: str) -> Settings:
    """Write a settings file, let this process use it, and return the settings."""
    path.write_text("".join(f"{name} = '''{value}'''\n" for name, value in given.items()))
    monkeypatch.setenv(CONFIG_VARIABLE, str(path))
    return load_settings()

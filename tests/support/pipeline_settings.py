"""Settings that Spark's Python workers find: their environment is that of the session's start."""

import json
from pathlib import Path

import pytest

from sea_mq_worker.settings import CONFIG_VARIABLE, ENV_PREFIX, Settings, load_settings
from tests.support.worker import Deployment


def write_toml(path: Path, **given: str) -> Path:
    """Write a settings file; a string of TOML is one of JSON."""
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items()))
    return path


def write_settings(path: Path, monkeypatch: pytest.MonkeyPatch, **given: str) -> Settings:
    """Write a settings file, let this process use it, and return the settings."""
    monkeypatch.setenv(CONFIG_VARIABLE, str(write_toml(path, **given)))
    return load_settings()


def values_of(target: Deployment) -> dict[str, str]:
    """Return the settings of a deployment by the names that a file has."""
    return {name.removeprefix(ENV_PREFIX).lower(): value for name, value in target.environment.items()}

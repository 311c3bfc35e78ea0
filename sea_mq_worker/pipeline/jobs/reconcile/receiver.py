"""Other services that consume this service's stream, each described by its settings file."""

import os
from dataclasses import dataclass
from pathlib import Path

from sea_mq_worker.pipeline.executor_settings import config_of
from sea_mq_worker.settings import CONFIG_VARIABLE, ENV_PREFIX, Settings, SettingsError, load_settings


@dataclass(frozen=True, slots=True)
class Receiver:
    """A service; ``config`` is the path of its settings file on every node."""

    config: str
    settings: Settings


def load_receiver(path: Path) -> Receiver:
    """Load a receiver's settings.

    Raises:
        SettingsError: the file is wrong, or environment variables would override it.
    """
    if hiding := sorted(_from_environment()):
        raise SettingsError(
            f"--receiver {path}: {', '.join(hiding)} in the environment would override the receiver's "
            f"settings; put this service's settings into a file and set {CONFIG_VARIABLE} to its path"
        )
    config = str(path.resolve())
    with config_of(config):
        return Receiver(config, load_settings(needs=("database_url", "nats_url")))


def _from_environment() -> set[str]:
    """Return the environment variables that would override the receiver's file, except the lake."""
    fields = {f"{ENV_PREFIX}{name}".upper() for name in Settings.model_fields if name != "pipeline_lake"}
    return fields & set(os.environ)

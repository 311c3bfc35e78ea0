"""Other services that consume the own stream, each known by its settings file."""

import os
from dataclasses import dataclass
from pathlib import Path

from sea_mq_worker.pipeline.executor_settings import config_of
from sea_mq_worker.settings import CONFIG_VARIABLE, ENV_PREFIX, Settings, SettingsError, load_settings


@dataclass(frozen=True, slots=True)
class Receiver:
    """A service; ``config`` is its settings file, the same on every node."""

    config: str
    settings: Settings


def load_receiver(path: Path) -> Receiver:
    """Read a receiver's settings.

    Raises:
        SettingsError: the file is wrong, or settings in the environment would hide what it says.
    """
    if hiding := sorted(_from_environment()):
        raise SettingsError(
            f"--receiver {path}: {', '.join(hiding)} in the environment would be taken for the receiver's "
            f"too; put your own settings into a file and name it by {CONFIG_VARIABLE}"
        )
    config = str(path.resolve())
    with config_of(config):
        return Receiver(config, load_settings(needs=("database_url", "nats_url")))


def _from_environment() -> set[str]:
    """Name what would be taken for the receiver's; the lake is asked for the own service alone."""
    fields = {f"{ENV_PREFIX}{name}".upper() for name in Settings.model_fields if name != "pipeline_lake"}
    return fields & set(os.environ)

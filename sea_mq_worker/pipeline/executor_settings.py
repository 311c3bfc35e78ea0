"""How executors reach PostgreSQL and NATS: by the worker's own settings, read where they run.

Plans, event logs and Spark's pages show the options of a source, so no option ever holds a secret. An
executor reads ``SEA_MQ_*`` from its own environment, or the file that the option ``config`` names.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from sea_mq_worker.settings import CONFIG_VARIABLE, Settings, load_settings

CONFIG = "config"
"""Option: path of a settings file, the same on every node."""


def executor_settings(options: Mapping[str, str], *, needs: Collection[str]) -> Settings:
    """Load the settings in this process.

    Raises:
        SettingsError: one is missing or wrong here.
    """
    with config_of(options.get(CONFIG) or None):  # the next task of this process may be another job's
        return load_settings(needs=needs)


def access_options() -> dict[str, str]:
    """Return the options by which executors find the settings that this process has."""
    path = os.environ.get(CONFIG_VARIABLE)
    return {CONFIG: path} if path else {}


@contextmanager
def config_of(config: str | None) -> Iterator[None]:
    """Let what is read in the block be read with this settings file; None: with the own one."""
    if config is None:
        yield
        return
    own = os.environ.get(CONFIG_VARIABLE)
    os.environ[CONFIG_VARIABLE] = config
    try:
        yield
    finally:
        if own is None:
            del os.environ[CONFIG_VARIABLE]
        else:
            os.environ[CONFIG_VARIABLE] = own

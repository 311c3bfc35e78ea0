"""Load the worker's settings in Spark's executors, which use them to connect to PostgreSQL and NATS.

Query plans, event logs and Spark's web pages show the options of a source, so no option contains a secret. An
executor reads ``SEA_MQ_*`` from its own environment, or from the file in the option ``config``.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from sea_mq_worker.settings import CONFIG_VARIABLE, Settings, load_settings

CONFIG = "config"
"""Option of a source: path of a settings file, the same on every node."""


def executor_settings(options: Mapping[str, str], *, needs: Collection[str]) -> Settings:
    """Load the settings in this process.

    Raises:
        SettingsError: a setting is missing or wrong in this process.
    """
    with config_of(options.get(CONFIG)):  # the process may run a task of another job next
        return load_settings(needs=needs)


def access_options() -> dict[str, str]:
    """Return the options that let executors load the same settings as this process."""
    path = os.environ.get(CONFIG_VARIABLE)
    return {CONFIG: path} if path else {}


def config_of(config: str | None) -> AbstractContextManager[None]:
    """Use this settings file inside the block; None: keep the current one."""
    return environment({CONFIG_VARIABLE: config} if config else {})


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value

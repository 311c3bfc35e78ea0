"""Read settings from ``SEA_MQ_*`` environment variables or a TOML file, and check how they fit together.

The environment overrides the file.
"""

import os
import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sea_mq_worker.settings.error_messages import reason, unknown
from sea_mq_worker.settings.fields import CONFIG_VARIABLE, ENV_PREFIX, ConsumerSettings, Settings
from sea_mq_worker.settings.postgres_url import refused_variables
from sea_mq_worker.settings.relations import contradictions

__all__ = [
    "CONFIG_VARIABLE",
    "ENV_PREFIX",
    "ConsumerSettings",
    "Settings",
    "SettingsError",
    "check_settings",
    "load_settings",
    "unread_env_file",
]

_REQUIRED = "is required; set it (`python -m sea_mq_worker dev` starts its own servers and needs no settings)"
_LINK = re.compile(r"(?:tcp|udp|sctp)://")
_LINK_NAME = re.compile(
    r"_SERVICE_(?:HOST|PORT(?:_\w+)?)$|_PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?$"
)
"""Values and names of the variables that Kubernetes makes for each Service (`enableServiceLinks`)."""
_ASSIGNMENT = re.compile(rf"\s*(?:export\s+)?({ENV_PREFIX}\w+)\s*=")
_VARIABLES = {key: f"{ENV_PREFIX}{key.upper()}" for key in Settings.model_fields}


class SettingsError(Exception):
    """Settings are wrong, missing or contradictory; the text has one line per key and names the key."""


def config_file() -> str | None:
    """Return the path of this process's settings file; None: there is none."""
    return os.environ.get(CONFIG_VARIABLE) or None


def load_settings(*, needs: Collection[str] = (), config: str | None = None) -> Settings:
    """Read and check the settings.

    Args:
        needs: keys that the command requires.
        config: path of the settings file; by default this process's.

    Raises:
        SettingsError: names every key that is wrong or missing.
    """
    _refuse_unknown_variables()
    try:
        settings = Settings.model_validate(_file(config) | _environment())
    except ValidationError as error:
        raise SettingsError("\n".join(_explain(problem) for problem in error.errors())) from None
    check_settings(settings, needs=needs)
    return settings


def check_settings(settings: Settings, *, needs: Collection[str]) -> None:
    """Check that settings fit together, and that the needed keys are set.

    Raises:
        SettingsError: names every key that contradicts another or is missing.
    """
    missing = [(key, _REQUIRED) for key in needs if not getattr(settings, key)]
    if settings.database_url and (demands := list(refused_variables(os.environ))):
        raise SettingsError("\n".join(demands))
    if problems := contradictions(settings) + missing:
        raise SettingsError("\n".join(_line(key, text) for key, text in problems))


def unread_env_file() -> str:
    """Return a hint if a file `.env` here holds variables that the environment lacks; empty otherwise."""
    try:
        lines = Path(".env").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    named = [found[1] for line in lines if (found := _ASSIGNMENT.match(line))]
    if all(name in os.environ for name in named):
        return ""
    return "the file .env is not read; load it into the environment: set -a; . ./.env; set +a"


def _line(key: str, text: str) -> str:
    return f"{ENV_PREFIX}{key.upper()}: {text}"


def _file(given: str | None) -> dict[str, Any]:
    path = given or config_file()
    if not path:
        return {}
    try:
        entries = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"{CONFIG_VARIABLE}: {path}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"{CONFIG_VARIABLE}: {path}: {error}") from None
    if unknown_keys := sorted(entries.keys() - _VARIABLES.keys()):
        lines = (f"{CONFIG_VARIABLE}: {path}: {unknown(key, _VARIABLES)}" for key in unknown_keys)
        raise SettingsError("\n".join(lines))
    return entries


def _environment() -> dict[str, str]:
    given = ((key, os.environ.get(name)) for key, name in _VARIABLES.items())
    return {key: value.strip() for key, value in given if value is not None and not _LINK.match(value)}


def _refuse_unknown_variables() -> None:
    """Reject a misspelt variable, which would otherwise leave the default in force silently."""
    ours = {name for name in os.environ if name.startswith(ENV_PREFIX) and "_TEST_" not in name}
    known = {CONFIG_VARIABLE, *_VARIABLES.values()}
    if unknown_names := sorted(name for name in ours - known if not _is_service_link(name)):
        raise SettingsError("\n".join(unknown(name, known) for name in unknown_names))


def _is_service_link(name: str) -> bool:
    """Return whether Kubernetes made the variable, for a Service such as `sea-mq-worker` in the namespace."""
    return bool(_LINK_NAME.search(name) or (name.endswith("_PORT") and _LINK.match(os.environ[name])))


def _explain(problem: Any) -> str:
    return _line(problem["loc"][0], reason(problem)) if problem["loc"] else reason(problem)

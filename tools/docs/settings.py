"""The table of all settings."""

from typing import Literal, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from sea_mq_worker.settings import ENV_PREFIX, ConsumerSettings, Settings
from tools.docs.markdown import table


def table_of_settings() -> str:
    """Return a row for each setting, in the order of the class."""
    return table(
        ("variable", "default", "meaning"),
        (
            (f"`{ENV_PREFIX}{name.upper()}`", _default(field), _meaning(field))
            for name, field in Settings.model_fields.items()
        ),
    )


def _default(field: FieldInfo) -> str:
    """Write the default as a variable would hold it, or nothing if there is no default."""
    match field.default:
        case None | "" | SecretStr():
            return ""
        case bool() as value:
            return f"`{str(value).lower()}`"
        case float() as value:
            return f"`{value:.15g}`"
        case frozenset() | tuple() as values:
            return f"`{','.join(sorted(map(_element, values)))}`"
        case value:
            return f"`{value}`"


def _element(value: object) -> str:
    return f"{value.stream}/{value.durable}" if isinstance(value, ConsumerSettings) else str(value)


def _meaning(field: FieldInfo) -> str:
    text = (field.description or "").replace("|", "\\|")
    if get_origin(field.annotation) is not Literal:
        return text
    return f"{text} One of {', '.join(f'`{choice}`' for choice in get_args(field.annotation))}."

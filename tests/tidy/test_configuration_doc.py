"""docs/reference/configuration.md lists every setting as `sea_mq_worker/settings/fields.py` has it."""

from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from sea_mq_worker.settings import ENV_PREFIX, ConsumerSettings, Settings

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"
BEGIN, END = "<!-- settings -->\n", "<!-- end of settings -->"
REGENERATE = "configuration.md differs from fields.py: run python -m tests.tidy.test_configuration_doc"


def table() -> str:
    """Write one row a setting, in the order of the class."""
    rows = [
        f"| `{ENV_PREFIX}{name.upper()}` | {default(field)} | {meaning(field)} |"
        for name, field in Settings.model_fields.items()
    ]
    return "\n".join(["| variable | default | meaning |", "|---|---|---|", *rows, ""])


def default(field: FieldInfo) -> str:
    """Write the default as a variable would hold it; nothing where there is none."""
    match field.default:
        case None | "" | SecretStr():
            return ""
        case bool() as value:
            return f"`{str(value).lower()}`"
        case float() as value:
            return f"`{value:.15g}`"
        case frozenset() | tuple() as values:
            return f"`{','.join(sorted(map(one, values)))}`"
        case value:
            return f"`{value}`"


def one(value: object) -> str:
    return f"{value.stream}/{value.durable}" if isinstance(value, ConsumerSettings) else str(value)


def meaning(field: FieldInfo) -> str:
    text = (field.description or "").replace("|", "\\|")
    if get_origin(field.annotation) is not Literal:
        return text
    return f"{text} One of {', '.join(f'`{choice}`' for choice in get_args(field.annotation))}."


def parts() -> tuple[str, str, str]:
    """Take the document apart: before the table, the table, behind it."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    written, _, behind = rest.partition(END)
    return before, written, behind


def test_the_document_lists_the_settings_as_they_are() -> None:
    _, written, _ = parts()
    assert written == table(), REGENERATE


def test_every_setting_has_a_meaning() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


if __name__ == "__main__":
    head, _, tail = parts()
    DOCUMENT.write_text(f"{head}{BEGIN}{table()}{END}{tail}")

"""Errors of the kit for a description that it cannot use."""

from pathlib import Path

import pytest

from kit.description import Description, DescriptionError, filled


@pytest.mark.parametrize("text", ["", "name =", 'name = "x"\nspeed = 1'])
def test_an_invalid_description_is_refused_with_the_file_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "relay.toml"
    file.write_text(text)
    with pytest.raises(DescriptionError, match=r"relay\.toml"):
        Description.load(file)


def test_the_error_of_an_unknown_placeholder_names_the_known_ones() -> None:
    with pytest.raises(
        DescriptionError, match=r"unknown placeholder 'databse_url'; expected one of \{nats_url\}"
    ):
        filled(("run", "{databse_url}"), {"nats_url": "x"})

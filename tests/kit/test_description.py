"""What the kit says of a description that it cannot use."""

from pathlib import Path

import pytest

from kit.description import Description, DescriptionError, filled

RELAYS = sorted((Path(__file__).parents[2] / "kit" / "relays").glob("*.toml"))


@pytest.mark.parametrize("file", RELAYS, ids=lambda file: file.stem)
def test_each_description_can_be_read_and_says_what_it_describes(file: Path) -> None:
    description = Description.load(file)
    assert description.name == file.stem
    assert description.about


@pytest.mark.parametrize("text", ["", "name =", 'name = "x"\nspeed = 1'])
def test_a_description_that_lacks_something_is_refused_by_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "relay.toml"
    file.write_text(text)
    with pytest.raises(DescriptionError, match=r"relay\.toml"):
        Description.load(file)


def test_an_unknown_placeholder_is_told_with_the_known_ones() -> None:
    with pytest.raises(DescriptionError, match=r"'databse_url' is no placeholder; there are \{nats_url\}"):
        filled(("run", "{databse_url}"), {"nats_url": "x"})

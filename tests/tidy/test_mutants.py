"""The list of mutants follows the code: each can be planted today, and its test is there."""

from tests.mutation.mutants import load, problems


def test_every_mutant_applies_to_the_code_and_names_a_test() -> None:
    assert problems(load()) == []

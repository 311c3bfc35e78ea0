"""Errors are alike that differ in ids and numbers alone; what says what is wrong stays."""

import pytest

from sea_mq_worker.operators.records import mask_ids


@pytest.mark.parametrize(
    ("error", "alike"),
    [
        ("the handler answered 422 (with 46 bytes)", "the handler answered 422 (with # bytes)"),
        ("the handler answered 503", "the handler answered 503"),
        ("answered 4220", "answered 422#"),
        ("PostgreSQL: gone (SQLSTATE 57P01) after 12 s", "PostgreSQL: gone (SQLSTATE 57P01) after # s"),
        ("event 0198c3a2-5f7e-7c31-9f0e-3b8a4d2e6c10 of order-7", "event # of order-#"),
        ("maximum bytes exceeded (503/10077)", "maximum bytes exceeded (#/#)"),
    ],
)
def test_ids_and_numbers_are_left_out_and_codes_stay(error: str, alike: str) -> None:
    assert mask_ids(error) == alike

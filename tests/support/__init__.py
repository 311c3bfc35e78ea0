"""Helpers of tests; pytest explains their assertions as it does in test modules."""

import pytest

pytest.register_assert_rewrite("tests.support.site")

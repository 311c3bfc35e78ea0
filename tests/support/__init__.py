"""What tests share; its assertions explain themselves as those of test modules do."""

import pytest

pytest.register_assert_rewrite("tests.support.site")

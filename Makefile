# Short commands. `install` and `test` are the README's own line in two steps.
PYTHON ?= python3

.PHONY: install test quick check dev

install:
	$(PYTHON) -m venv .venv
	.venv/bin/pip install -q --require-hashes -r requirements/build.lock
	.venv/bin/pip install -q --no-build-isolation --require-hashes -r requirements/dev.lock
	.venv/bin/pip install -q --no-build-isolation --no-deps -e .

test:
	.venv/bin/python -m pytest -q -n 4

quick: # no servers but those that a test starts for itself; a minute
	.venv/bin/python -m pytest -q -n 4 tests/unit tests/tidy

check:
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

dev: # the worker on embedded servers, with sample traffic
	.venv/bin/python -m sea_mq_worker dev

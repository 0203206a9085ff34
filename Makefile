# make demo     train the main job on a real Airflow, and print what happened
# make airflow  the demo's services in the foreground; Ctrl-C ends them (PORT=8080)
# make test     everything CI runs; make check | test-fast | test-long | clean
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3.11)
BIN := .venv/bin
# The stages plugin puts the quick tests first, and says what is left out and why.
PYTEST := $(BIN)/python -m pytest -p tests.stages
# Two processes: the tests of Airflow in one, all others in the other.
BESIDE := -n 2 --dist loadscope --no-loadscope-reorder

.PHONY: demo airflow test test-fast test-long check format install clean

demo: .venv/installed
	@$(BIN)/python -m tf_operator.services demo

airflow: .venv/installed
	@$(BIN)/python -m tf_operator.services airflow

test: check
	$(PYTEST) $(BESIDE)

test-fast: check
	$(PYTEST) -n 2 --dist loadfile -m "not (local or tensorflow or vault or airflow or docker or swarm or gpu or long)"

test-long: .venv/installed
	$(PYTEST) -m long

check: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/installed
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
	  { echo "tf_operator needs Python 3.11, $(PYTHON) is another: set PYTHON=/path/to/python3.11"; exit 1; }
	@begun=$$SECONDS; test -x $(BIN)/python || $(PYTHON) -m venv .venv; \
	  echo "installing packages into .venv (minutes, the first time) ..."; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[examples,dev]' && \
	  echo "installed packages in $$((SECONDS - begun)) s" && touch $@

# Not models/: those are results.
clean:
	rm -rf .venv .airflow .state .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

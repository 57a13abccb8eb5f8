# Every target works on a fresh clone: it makes .venv with what it needs first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test check bench up down clean

demo: $(VENV)/.demo
	$(BIN)/slodrift demo

test: $(VENV)/.dev
	$(BIN)/pytest -m "not kafka and not slow"

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy client/slodrift_client
	$(BIN)/lint-imports

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml client/pyproject.toml | $(VENV)/bin/pip
	$(BIN)/pip install --quiet -e client -e '.[embedded,node]'
	touch $@

$(VENV)/.dev: pyproject.toml client/pyproject.toml | $(VENV)/bin/pip
	$(BIN)/pip install --quiet -e client -e '.[dev]'
	touch $(VENV)/.demo $@

up:
	docker compose up --detach --wait

down:
	docker compose down

clean:
	rm -rf $(VENV) build *.egg-info client/*.egg-info .mypy_cache .ruff_cache .pytest_cache

# Every target works on a fresh clone: it makes .venv with what it needs first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test check model mutants faults soak bench up down clean

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

# Every speed in short, beside its peers: two minutes or so. The others: slodrift bench --help.
bench: $(VENV)/.dev
	$(BIN)/slodrift bench short

# The decision protocol under faults in any order: 20,000 x 50 steps, a process for every core.
model: $(VENV)/.dev
	$(BIN)/python tests/model/model_long.py

# Every guard of the decision path taken away in turn; some test must notice each.
mutants: $(VENV)/.dev
	$(BIN)/python tests/model/mutants.py

# Faults injected for real into the whole path (docs/reliability.md); ARGS="--quick", "--repeat 3", a group, or a part of a name.
faults: $(VENV)/.dev
	$(BIN)/python -m bench.faults $(ARGS)

# 200 kills under load, then ClickHouse row for row; once more with the archive's default thinning; and how soon 50 hosts know.
soak: $(VENV)/.dev
	$(BIN)/python -m bench.faults.kills --kills 200
	$(BIN)/python -m bench.faults.kills --kills 60 --quiet-s 60
	$(BIN)/python -m bench.faults.visibility

$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml client/pyproject.toml | $(BIN)/pip
	$(BIN)/pip install --quiet -e client -e '.[embedded,node]'
	touch $@

$(VENV)/.dev: pyproject.toml client/pyproject.toml | $(BIN)/pip
	$(BIN)/pip install --quiet -e client -e '.[dev]'
	touch $(VENV)/.demo $@

# One password for ClickHouse and Grafana, drawn once; letters and digits, because it is part of an address.
.env:
	umask 077 && echo "SLODRIFT_PASSWORD=$$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')" >$@

# Passwords of the Redis users, drawn once, and the ACL file with their SHA-256.
.secrets/redis/users.acl: deploy/redis/users.acl deploy/redis/secrets.sh
	deploy/redis/secrets.sh .secrets/redis "$${SLODRIFT_FLEET:-default}"

# Kafka, ClickHouse, Redis and the workers in containers; more in docker-compose.yml.
up: .env .secrets/redis/users.acl
	docker compose up --detach --build --wait judge archive framer

down: .env
	docker compose --profile '*' down

clean:
	rm -rf $(VENV) build *.egg-info client/*.egg-info .mypy_cache .ruff_cache .pytest_cache

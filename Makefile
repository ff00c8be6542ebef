# Everything runs in .venv, which is made where it is missing and renewed when pyproject.toml changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := build/demo
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Modules are compiled once, and not again in each process that a test starts.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all lint format docs bench peers check-release clean

help: ## say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV)/.base: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "datapipe needs Python 3.11 or newer; name one with: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	$(PIP) --editable '.[demo,dev,dali,report]'
	@touch $@

install: $(VENV)/.dev ## make the environment: library, tests, DALI

demo: $(VENV)/.base ## build a dataset from real photographs, pack it, plan it, train on it
	$(BIN)/python tools/make_sample_data.py $(DEMO)/raw --samples 2000 --broken 3
	$(BIN)/datapipe pack $(DEMO)/raw $(DEMO)/shards --shard-size 64MB
	$(BIN)/python tools/train_tokenizer.py $(DEMO)/shards $(DEMO)/tokenizer.json
	$(BIN)/datapipe plan $(DEMO)/shards --pack 4096 --world-size 8 \
		--tokenizer $(DEMO)/tokenizer.json --template chatml --image-tokens 256
	$(BIN)/python examples/train_captioner.py $(DEMO)/shards

test: $(VENV)/.dev ## the tests, in about six minutes
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m "not campaign"

test-all: lint test ## what CI runs: lint, tests, long tests, every wrong value, four thousand flipped bits
	DATAPIPE_WRONG_VALUES=all DATAPIPE_FLIPS=4000 DATAPIPE_DAMAGES=50 $(BIN)/python -m pytest \
		--numprocesses 2 --dist worksteal --durations 30 -m "(campaign or scaled) and not measuring"
	$(BIN)/python -m pytest -m "campaign and measuring"

lint: $(VENV)/.dev ## style, types, import layering
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev ## bring the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.docs: $(VENV)/.base
	$(PIP) --editable '.[docs]'
	@touch $@

docs: $(VENV)/.docs ## build the documentation: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

peers: $(VENV)/.dev ## make the environment of the loaders that `make bench` races against
	benchmarks/peers/install.sh

bench: $(VENV)/.dev ## measure against peers and against the kernels' own limit
	$(BIN)/python -m benchmarks.loaders
	$(BIN)/python -m benchmarks.loaders --dtype uint8
	$(BIN)/python -m benchmarks.loaders --mixed
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python -m benchmarks.pack
	$(BIN)/python -m benchmarks.plan
	$(BIN)/python -m benchmarks.billion

check-release: ## build the distribution, and check it as users get it, outside of the repository
	PYTHONS="$${PYTHONS:-$(PYTHON)}" tools/check_release.sh

clean: ## remove what was built, but not the environment
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

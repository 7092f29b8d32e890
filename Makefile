# Everything sets up its own virtual environment from constraints.txt; only Python (3.11 is what the suite runs with) and make are needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# PyTorch first, by its exact version: a range would fetch the newest build with its CUDA packages.
TORCH := $(shell sed -n 's/^\(torch==.*\)/\1/p' constraints.txt)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
TOO_OLD = trpl needs Python 3.11 or newer, and $(PYTHON) is $(or $(shell $(PYTHON) -V 2>/dev/null),not found); name another: make $(or $(MAKECMDGOALS),train) PYTHON=python3.11
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: train test check lint bench bench-cliffs stress versions hosts coverage mutants docs clean help

help:
	@echo "make train   train a KL policy on Hopper for a minute or two and draw its learning curve"
	@echo "make test    everything that must pass: lint, types, import contracts, all tests"
	@echo "make check   the same without the slow tests"
	@echo "make bench   time of the layers and of training, as tables, and JSON in bench/"
	@echo "make bench-cliffs   growth of the layers' time with batch, dimension and bound, and its picture"
	@echo "make stress  hard numbers, faults and bad files thrown at trpl: what held (an hour or two)"
	@echo "make versions   the oldest and newest Python, NumPy, PyTorch and JAX, in environments of their own (half an hour)"
	@echo "make hosts   the adapters' tests with rsl_rl, Brax and the others, each in a folder of its own"
	@echo "make coverage, make mutants   what the tests reach, and what they notice"
	@echo "make docs    the documentation site in site/"

$(VENV)/bin/python:
	$(if $(shell $(PYTHON) -c 'import sys; print("yes" * (sys.version_info >= (3, 11)))' 2>/dev/null),,$(error $(TOO_OLD)))
	$(PYTHON) -m venv $(VENV)

$(VENV)/.train: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing the trainer (about half a minute)"
	$(PIP) -e ".[train]"
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing everything (one or two minutes)"
	$(PIP) $(TORCH)
	$(PIP) -e ".[dev]"
	@touch $@ $(VENV)/.train

train: $(VENV)/.train
	rm -rf runs/first
	$(ONE_THREAD) $(BIN)/trpl train kl Hopper-v4 --steps 150000 --out runs/first

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python

test: lint
	$(ONE_THREAD) $(BIN)/pytest -n 2 --dist worksteal -m "not stress"

check: lint
	$(ONE_THREAD) $(BIN)/pytest -n 2 --dist worksteal -m "not slow and not stress"

bench: $(VENV)/.dev
	@mkdir -p bench
	$(BIN)/python benchmarks/layers.py --out bench/layers.json
	$(BIN)/python benchmarks/families.py --out bench/families.json
	$(BIN)/python benchmarks/training.py --out bench/training.json
	$(BIN)/python benchmarks/sweep.py --out bench/sweep.json
	$(BIN)/python benchmarks/report_speed.py --out bench/report_speed.json
	$(BIN)/python benchmarks/integrations.py speed latency --out bench/integrations.json
	$(BIN)/python docs/make_tables.py

bench-cliffs: $(VENV)/.dev
	@mkdir -p bench
	$(BIN)/python benchmarks/cliffs.py --out bench/cliffs.json --figure docs/images/cliffs.svg

stress: $(VENV)/.dev
	@mkdir -p bench
	$(ONE_THREAD) $(BIN)/python stress/numerics.py --out bench/stress-numerics.json
	$(ONE_THREAD) $(BIN)/python stress/families.py --out bench/stress-families.json
	$(ONE_THREAD) $(BIN)/python stress/faults.py --out bench/stress-faults.json
	$(ONE_THREAD) $(BIN)/python stress/files.py --out bench/stress-files.json
	$(ONE_THREAD) $(BIN)/python stress/builds.py --out bench/stress-builds.json
	$(ONE_THREAD) $(BIN)/python stress/pages.py --out bench/stress-pages.json
	$(ONE_THREAD) $(BIN)/pytest -m stress

versions: $(VENV)/.dev
	$(BIN)/python stress/versions.py --out bench/versions.json $(if $(SHORT),--short) $(if $(ONLY),--only $(ONLY)) \
	  $(if $(PYTHONS),--python $(PYTHONS)) $(if $(EXTRAS),--extras $(EXTRAS))

hosts: $(VENV)/.dev
	$(BIN)/python tests/hosts.py

coverage: $(VENV)/.dev
	$(ONE_THREAD) $(BIN)/coverage run -m pytest -q -n 2 --dist worksteal
	$(BIN)/coverage combine -q
	$(BIN)/coverage json -q -o coverage.json
	$(BIN)/python stress/covered.py coverage.json

mutants: $(VENV)/.dev
	$(ONE_THREAD) $(BIN)/python stress/mutants.py --out stress/mutants.md

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

clean:
	rm -rf $(VENV) build dist site bench .pytest_cache .ruff_cache .hypothesis

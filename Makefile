# A fresh machine needs python3 (3.11 or later, with venv and pip) and make. Every target installs what is missing first.
# Another interpreter: make PYTHON=python3.12 test. faiss for a GPU with CUDA 12: make EXTRA=gpu install. Another build of
# torch than pip's default: see README.md.

PYTHON ?= python3
EXTRA ?= cpu
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TOOLS := $(VENV)/.installed-tools
# Images of containers often forbid files of bytecode. Without them, each of the many processes that tests start compiles
# torch, Ray and MLflow again, and takes twice as long to start.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL := $(BIN)/python -m pip install --quiet --quiet --no-compile --disable-pip-version-check

.PHONY: help install demo test test-all first-tier both-tiers nightly fuzz mutants soak lint style types bench site clean
help:
	@echo "make demo    prepare the built-in corpus, train, evaluate, print the table"
	@echo "make test    lint, type check and run the first tier of tests"
	@echo "make test-all  the same with both tiers of tests (an hour)"
	@echo "make nightly the tests that make test leaves out"
	@echo "make fuzz    give each reader of files 100,000 damaged ones (hours); make nightly gives it 3,000"
	@echo "make mutants break the sources in some 400 places, one at a time, and see that a test notices (make mutants ONLY=lease)"
	@echo "make soak    kill processes of trainings, a sweep, folds, embed and prepare at random, 200 times, and compare what each leaves (hours; make soak KILLS=20)"
	@echo "make bench   run the benchmarks and write benchmarks/RESULTS.md (make bench ONLY=P1,P2 for some)"
	@echo "make site    build the documentation as a site in build/site; a link that leads nowhere is an error"
	@echo "make lint    ruff and mypy alone"

install: $(TOOLS)

$(BIN)/python:
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing raybio into $(VENV) (2 GB; minutes the first time)"
	@$(PIP_INSTALL) -c constraints.txt -e '.[$(EXTRA),methods]'
	@touch $@

$(TOOLS): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing raybio and the tools of development into $(VENV) (2 GB; minutes the first time)"
	@$(PIP_INSTALL) -c constraints.txt -e '.[$(EXTRA),methods,dev,bench]'
	@touch $(STAMP) $@

demo: $(STAMP)
	$(BIN)/raybio demo

lint: style types

style: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

# Two processes: one begins with the commands that start clusters, one with the tests of a shared cluster
# (tests/conftest.py groups them). A third gained nothing on two cores.
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist loadgroup --no-loadscope-reorder

# mypy is one process of a minute, beside tests that often wait for others.
test: style
	@$(MAKE) --no-print-directory -j2 types first-tier

test-all: style
	@$(MAKE) --no-print-directory -j2 types both-tiers

first-tier: install
	$(PYTEST) -m "not nightly"

both-tiers: install
	$(PYTEST) -m ""

# Tests of the site and of mteb are skipped without these extras; -rs says what else was skipped, and why.
nightly: install
	@$(PIP_INSTALL) -c constraints.txt -e '.[docs,mteb]'
	$(PYTEST) -rs -m nightly

fuzz: install
	FUZZ_INPUTS=100000 $(PYTEST) -m nightly tests/test_mutated_inputs.py

# Results are kept in build/mutants: what neither a mutant's file nor its tests have changed is not run again.
mutants: install
	$(BIN)/python tests/mutants/run.py $(if $(ONLY),--only "$(ONLY)")

# Results are kept in build/soak: the same command resumes until there are KILLS kills.
soak: install
	PYTHONPATH=. $(BIN)/python benchmarks/soak.py $(or $(KILLS),200)

bench: install
	$(BIN)/python benchmarks/run_all.py $(if $(ONLY),--only $(ONLY))

site: install
	@$(PIP_INSTALL) -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache *.egg-info

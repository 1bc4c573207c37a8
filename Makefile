# Every command a contributor needs. Requires make and Python 3.11+ with venv; the rest is installed.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
TYPED  := src/millrace proof tools $(wildcard benchmarks) tests

.DEFAULT_GOAL := help
.PHONY: help setup demo lint format types imports check test coverage docs test-ceph test-valkey test-alerts nightly bench lock build sbom release clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s  %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(VENV)/.project ## Create the environment and install what is locked (no-op when up to date)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"Millrace needs Python 3.11 or later, but $(PYTHON) is {v.major}.{v.minor}. Name another one: make setup PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

# Two stamps, so that an edit of pyproject.toml does not install the lock file again. Python compiles the modules when they
# are first imported: most of them never are, and to compile them all takes half of the time.
$(VENV)/.locked: requirements.lock | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes --no-deps -r requirements.lock
	@touch $@

$(VENV)/.project: pyproject.toml $(VENV)/.locked
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# The first thing many people run: where nothing is set up yet, only what the command line and the dashboard need is
# installed.
$(VENV)/.demo: pyproject.toml requirements.lock | $(BIN)/python
	$(BIN)/python tools/install_part.py web
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.demo-report: $(VENV)/.demo
	@echo "Installing Spark for the report at the end: about 500 MB, a minute or two. make demo ARGS=--no-report does without."
	$(BIN)/python tools/install_part.py web spark
	@touch $@

NO_REPORT := $(filter --no-report --dry-run,$(ARGS))
demo: $(if $(wildcard $(VENV)/.project),setup,$(VENV)/.demo$(if $(NO_REPORT),,-report)) ## Watch a small web shop run on SQLite for 20 seconds; make demo ARGS='--jobs 5000'
	@$(BIN)/millrace demo $(ARGS)

lint: setup ## Check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup ## Put the code into the house format and apply safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup ## Check types: mypy on the code and the tests, pyright on the public API
	$(BIN)/mypy $(TYPED)
	$(if $(wildcard tests/typing),$(BIN)/pyright --pythonpath $(BIN)/python)

imports: setup ## Check that imports point down only
	$(BIN)/lint-imports

check: setup ## The fast loop: lint, types, imports, unit tests, and conformance on memory and SQLite
	@$(BIN)/python tools/run_areas.py --fast lint types imports

test: setup ## Run lint, types, imports and every test, and show the time each area took
	@$(BIN)/python tools/chromium.py > /dev/null || true # the tests that need a browser say so, too
	@$(BIN)/python tools/run_areas.py lint types imports

coverage: setup ## Run every test under coverage, and show lines and branches per package; slow
	@rm -f .coverage .coverage.*
	@$(BIN)/coverage run tools/run_areas.py
	@$(BIN)/coverage combine --quiet && $(BIN)/coverage json --quiet -o .coverage.json && $(BIN)/python tools/coverage_table.py .coverage.json

docs: setup ## Build the documentation site into site/, and fail on warnings such as broken links
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

test-ceph: setup ## Run the object store's tests on a real Ceph gateway from Debian's packages; ARGS are for pytest
	@$(BIN)/python tools/ceph.py $(ARGS)

test-valkey: setup ## Run the Redis store's tests on Valkey; ARGS are for pytest
	@$(BIN)/python tools/valkey.py $(ARGS)

test-alerts: ## Check the Prometheus alerts with promtool, which is in Debian's package prometheus
	cd deploy/prometheus && promtool check rules millrace-rules.yml && promtool test rules millrace-rules-test.yml

nightly: setup ## Run the long cases which `make test` leaves out
	@$(BIN)/python tools/run_areas.py --nightly

bench: setup ## Run every benchmark, one after the other
	@set -e; for file in benchmarks/[a-z]*.py; do \
	  name=$$(basename "$$file" .py); echo "benchmarks.$$name"; $(BIN)/python -m "benchmarks.$$name"; \
	done

lock: ## Pin the dependencies again; make lock UPGRADE=--upgrade moves them to their newest versions
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	$(PYTHON) -m venv "$$dir" && "$$dir/bin/pip" install --quiet --disable-pip-version-check uv && \
	"$$dir/bin/uv" pip compile pyproject.toml --extra all --group dev --output-file requirements.lock --quiet \
	  --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
	  --custom-compile-command 'make lock' $(UPGRADE)

build: setup ## Build the wheel and the source distribution into dist/
	@rm -rf dist && $(BIN)/python -m build --no-isolation --outdir dist . > /dev/null && ls dist

sbom: setup ## Write the SBOM of the runtime packages (all extras, locked versions) into dist/, as CycloneDX
	@$(BIN)/python -m tools.sbom dist

release: build sbom ## Build what is published, and check that this version may be; TAG=v0.1.0 also checks the tag
	@$(BIN)/python -m tools.release dist $(if $(TAG),'$(TAG)')

clean: ## Remove the environment and everything that was built or cached
	rm -rf $(VENV) .ceph .contrib .coverage* build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests tools $(wildcard benchmarks examples) -type d -name __pycache__ -prune -exec rm -rf {} +

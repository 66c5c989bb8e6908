# Everything that a developer or a machine runs. `make test PYTHON=python3.13` takes another interpreter.

# The first interpreter on the path that is new enough.
PYTHON ?= $(shell for name in python3 python python3.14 python3.13 python3.12 python3.11; do \
	if $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo $$name; break; fi; done)
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check
ARGS ?=
# Tests at the same time: they wait for processes and disks more than they compute.
WORKERS ?= 2

TOOLS := $(VENV)/.tools-installed
INSTALLED := $(VENV)/.tallystick-installed
BENCH_TOOLS := $(VENV)/.bench-installed

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check check-lint check-format check-types check-layers format soak bench wheel-test \
	acceptance-record browser-test docs pins clean

help:
	@echo "make demo               run the example, kill it in the middle, resume it, print the account"
	@echo "make test               every test except the soaks and those in a browser (ARGS='-k lease' picks some)"
	@echo "make check              ruff, format, mypy --strict, layer contracts"
	@echo "make wheel-test         build the wheel, run the acceptance tests against it from another folder"
	@echo "make soak               minutes of random kills"
	@echo "make browser-test       the page of a report in a headless Chromium, which has to be installed"
	@echo "make bench              the benchmarks, one table of all"
	@echo "make format docs pins   rewrite: the format, the generated reference, the pinned requirements (UPGRADE=1 raises them)"
	@echo "make acceptance-record  run the acceptance tests and write docs/acceptance-record.md"
	@echo "make clean              remove what was made here"

demo: $(INSTALLED)
	$(RUN) examples/language-id/demo.py

test: $(INSTALLED)
	$(RUN) -m pytest -m "not soak and not browser" -n $(WORKERS) --dist worksteal $(ARGS)

# Four steps, so that `make --keep-going check` shows the findings of all.
check: check-lint check-format check-types check-layers

check-lint: $(INSTALLED)
	$(VENV)/bin/ruff check .

check-format: $(INSTALLED)
	$(VENV)/bin/ruff format --check .

check-types: $(INSTALLED)
	$(VENV)/bin/mypy tallystick tests docs

check-layers: $(INSTALLED)
	$(VENV)/bin/lint-imports

format: $(INSTALLED)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

soak: $(INSTALLED)
	$(RUN) -m pytest -m soak -o timeout=3600 $(ARGS)

# Chromium is no Python package: .ci/run installs it, a developer does once.
browser-test: $(INSTALLED)
	$(RUN) -m pytest -m browser tests/browser $(ARGS)

# One table of all at the end; each script in bench/ can also be run alone.
bench: $(BENCH_TOOLS)
	$(RUN) bench/run_all.py $(ARGS)

wheel-test: $(INSTALLED)
	.ci/wheel-test $(RUN) -n $(WORKERS) --dist worksteal $(ARGS)

acceptance-record: $(INSTALLED)
	$(RUN) docs/acceptance_record.py $(ARGS)

docs: $(INSTALLED)
	$(RUN) docs/generate.py
	$(RUN) docs/generate_adapters.py
	$(RUN) docs/generate_schemas.py

COMPILE = $(VENV)/bin/pip-compile --quiet --no-config --generate-hashes --allow-unsafe --strip-extras --no-header \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options $(if $(UPGRADE),--upgrade)

# Resolved for the oldest Python that we support: what it needs is more than what newer ones need.
pins: $(INSTALLED)
	@$(RUN) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
		{ echo "error: pins are resolved on Python 3.11; make clean, then make pins PYTHON=python3.11" >&2; exit 1; }
	$(COMPILE) --extra dev --output-file requirements-dev.txt pyproject.toml
	$(COMPILE) --extra bench --constraint requirements-dev.txt --output-file requirements-bench.txt pyproject.toml

# Marked only when everything succeeded, so that an interrupted installation is begun anew.
$(TOOLS): requirements-dev.txt
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "error: tallystick needs Python 3.11 or newer; name one, as in: make test PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "error: $(PYTHON) lacks its venv module; install it (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --quiet --require-hashes -r requirements-dev.txt
	@touch $@

$(INSTALLED): $(TOOLS) pyproject.toml
	PYTHONWARNINGS=ignore $(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(BENCH_TOOLS): $(INSTALLED) requirements-bench.txt
	$(PIP) install --quiet --require-hashes -r requirements-bench.txt
	@touch $@

clean:
	rm -rf $(VENV) build demo-output dist *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

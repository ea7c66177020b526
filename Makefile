# Everything is one of these words. `make` alone lists them.
#
# A fresh Debian or Ubuntu needs make and python3-venv (Python 3.11 or newer), nothing else.
# PYTHON=python3.12 make demo   uses another interpreter for both virtual environments.

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
HERMES_VENV := .venv-hermes
BIN := $(VENV)/bin
# What the demo keeps, and where `make demo-reset` looks; two demos can live side by side.
export PORTAL_DEMO_DIR ?= .demo
# pip: no questions, no advice, no cache surprises; every file is checked against its hash.
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-input --require-hashes

# The gate touches no data of the portal that may run here. The key is made for this one run and forgotten.
GATE_ENV = env -u DATABASE_URL -u CELERY_BROKER_URL -u REDIS_URL PORTAL_DATA_DIR=.cache/gate
GATE_KEY := $(shell head -c 48 /dev/urandom | sha256sum | cut -c1-64)

.DEFAULT_GOAL := help
.PHONY: help demo demo-reset test coverage check bench lock format clean environment environments
.PHONY: check-lint check-format check-types check-arrows check-templates check-deploy check-migrations check-links

help:
	@echo 'make demo        the portal with a real Hermes beside it and practice runs to decide on'
	@echo 'make demo-reset  forget what the demo kept; the next `make demo` starts over'
	@echo 'make test        every test: both databases, a real Hermes, a real browser'
	@echo 'make coverage    which branches the tests of one database reach'
	@echo 'make check       the gate: lint, format, types, arrows between rooms, templates, settings, docs'
	@echo 'make bench       ratios measured within one run'
	@echo 'make format      put code and templates into their one form'
	@echo 'make lock        pin the newest packages again (needs network)'
	@echo 'make clean       remove caches and both virtual environments'

# ------------------------------------------------------------------------------------ environments

# Said before anything is made, in words that name the package to install.
define CHECK_PYTHON
	@command -v $(PYTHON) >/dev/null || { echo >&2 'No $(PYTHON) here. Install it with: apt-get install python3 python3-venv'; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo >&2 "$(PYTHON) is $$($(PYTHON) -V 2>&1); Python 3.11 or newer is needed. Name another one: PYTHON=python3.12 make $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo >&2 'This Python cannot make virtual environments. Install: apt-get install python3-venv'; exit 1; }
endef

# The portal's own packages: what serving and the demo need.
$(VENV)/.serving: requirements.txt
	$(CHECK_PYTHON)
	@echo 'Installing the portal into $(VENV)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(PIP_INSTALL) -r requirements.txt
	@touch $@

# The same and the tools of the gate and the tests.
$(VENV)/.tools: requirements-dev.txt $(VENV)/.serving
	@echo 'Installing the tools into $(VENV)'
	@$(BIN)/python $(PIP_INSTALL) -r requirements-dev.txt
	@touch $@

# Hermes pins its own versions of shared packages, so it lives apart.
$(HERMES_VENV)/.ready: requirements-hermes.txt
	$(CHECK_PYTHON)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info >= (3, 14))' || { echo >&2 'Hermes 0.19.0 runs on Python 3.11 to 3.13. Name one: PYTHON=python3.13 make $(MAKECMDGOALS)'; exit 1; }
	@echo 'Installing Hermes into $(HERMES_VENV)'
	@test -x $(HERMES_VENV)/bin/python || $(PYTHON) -m venv $(HERMES_VENV)
	@$(HERMES_VENV)/bin/python $(PIP_INSTALL) -r requirements-hermes.txt
	@touch $@

environment: $(VENV)/.serving
environments: $(VENV)/.tools $(HERMES_VENV)/.ready

# -------------------------------------------------------------------------------------------- words

# Both environments at once: unpacking one overlaps with downloading the other.
demo:
	@$(MAKE) --silent --no-print-directory -j2 $(VENV)/.serving $(HERMES_VENV)/.ready
	@exec $(BIN)/python manage.py demo

# A running demo holds its pid file. A sandbox whose demo was killed has ended with it; the second line makes sure.
demo-reset:
	@test ! -e "$(PORTAL_DEMO_DIR)/portal/portal.pid" || flock --nonblock "$(PORTAL_DEMO_DIR)/portal/portal.pid" true || \
	  { echo >&2 'The demo is running. End it with Ctrl-C in its terminal first.'; exit 1; }
	@test ! -x $(BIN)/python || $(BIN)/python -m hermes_portal.sandbox stop --dir "$(PORTAL_DEMO_DIR)/sandbox" >/dev/null
	@rm -rf -- "$(PORTAL_DEMO_DIR)"
	@echo 'The demo is forgotten. make demo starts a new one.'

test:
	@$(MAKE) --no-print-directory -j2 environments
	@exec $(BIN)/python tests/run.py $(SUITES)

# All parts are run, also when one fails; `make check-types` and so on run one.
coverage:
	@$(MAKE) --no-print-directory -j2 environments
	@exec $(BIN)/python tests/run.py --coverage sqlite once

check: $(VENV)/.tools
	@$(MAKE) --no-print-directory --keep-going check-lint check-format check-types check-arrows check-templates \
	  check-deploy check-migrations check-links
	@echo 'The gate is open.'

check-lint:
	$(BIN)/ruff check --output-format concise .

check-format:
	$(BIN)/ruff format --check --output-format concise .

check-types:
	$(GATE_ENV) $(BIN)/mypy

check-arrows:
	$(BIN)/lint-imports --no-cache

check-templates:
	$(BIN)/djlint --quiet --lint templates

# As production would be started: with keys and hosts of its own, behind HTTPS.
check-deploy:
	$(GATE_ENV) PORTAL_MODE=production PORTAL_ALLOWED_HOSTS=portal.example \
	  SECRET_KEY=$(GATE_KEY) PORTAL_KEYS=$(GATE_KEY) PORTAL_SIGNING_KEY=$(GATE_KEY) \
	  $(BIN)/python manage.py check --deploy --fail-level WARNING

check-migrations:
	$(GATE_ENV) $(BIN)/python manage.py makemigrations --check --dry-run

check-links:
	$(BIN)/python .ci/links.py

bench:
	@$(MAKE) --no-print-directory -j2 environments
	@exec $(BIN)/python -m tests.bench

format: $(VENV)/.tools
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .
	$(BIN)/djlint --quiet --reformat templates

# uv resolves, pip installs: no address of a registry ends up in a locked file.
lock: $(VENV)/.serving
	@test -x .cache/lock/bin/uv || { $(PYTHON) -m venv .cache/lock && .cache/lock/bin/python -m pip install --quiet uv; }
	@for name in requirements requirements-dev requirements-hermes; do \
	  .cache/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	    --no-header $$name.in -o $$name.txt || exit 1; done

clean:
	rm -rf $(VENV) $(HERMES_VENV) .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .coverage* \
	  .hypothesis screenshots staticfiles
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

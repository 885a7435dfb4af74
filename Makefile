# Two commands on a fresh Debian or Ubuntu machine: `make demo` and `make test`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg

# Debian has its keyring, Ubuntu has not.
PACKAGES := python3-venv mmdebstrap debian-archive-keyring systemd-container openssh-client iproute2 ca-certificates
SOURCES := module_utils library action_plugins filter_plugins sandbox scripts tests benchmarks molecule

.PHONY: help
help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: setup ## Boot a local host, deploy a real SGLang server to it and show what serves
	$(BIN)/python -m sandbox up sandbox1 --ssh-port 2201
	$(BIN)/ansible-playbook deploy.yml -l sandbox

.PHONY: test
test: setup lint unit newest engines integration browser molecule ## Run all tests (what CI runs)

.PHONY: unit
unit: setup ## Test the kit, the filters and the modules; full branch coverage of all of them
	$(BIN)/coverage run -m pytest tests/unit
	$(BIN)/coverage report

.PHONY: tables
tables: setup ## Write the generated tables into the documentation again
	$(BIN)/python scripts/tables.py
	$(BIN)/python scripts/memory_tables.py

.PHONY: engines
engines: setup ## Test tables and rules against installed engines (skipped without a Python that they support)
	venvs=$$(scripts/engines 0.5.15.post1 0.5.23); SGLANG_TEST_VENVS=$$venvs $(BIN)/python -m pytest tests/engine

.PHONY: newest
newest: setup ## Run the unit tests on Debian 13 with the newest ansible-core
	scripts/newest

.PHONY: integration
integration: setup ## Test the sandbox and what only a real systemd can say
	$(BIN)/python -m pytest tests/integration

.PHONY: browser
browser: setup ## Look at the pages of a plan and of a benchmark in a real browser
	scripts/packages chromium
	$(BIN)/python -m pytest tests/browser

# The longest first; each has its own hosts and ports, so that two run at once.
SCENARIOS := real_engine benchmark faults rolling eight_gpus drift default alternative secrets removed_instance
# Two installations of a real engine and many starts: it would take the tests far beyond half an hour.
MORE_SCENARIOS := upgrade
LOGS := artifacts/molecule

.PHONY: molecule
molecule: setup ## Deploy to real systemd hosts: the real engine, and a replayed one for many cases and faults
	rm -rf $(LOGS)
	$(MAKE) --jobs=2 --keep-going --output-sync=target $(SCENARIOS:%=molecule-%) || \
	  { scripts/failures $(LOGS)/*.log; exit 1; }

.PHONY: more-molecule
more-molecule: setup ## The scenario that is not part of `make test`: an upgrade of a real engine
	$(MAKE) --keep-going --output-sync=target $(MORE_SCENARIOS:%=molecule-%)

.PHONY: $(SCENARIOS:%=molecule-%) $(MORE_SCENARIOS:%=molecule-%)
$(SCENARIOS:%=molecule-%) $(MORE_SCENARIOS:%=molecule-%): molecule-%:
	mkdir -p $(LOGS)
	$(BIN)/molecule test --scenario-name $* 2>&1 | tee $(LOGS)/$*.log
	rm $(LOGS)/$*.log # what failed keeps its own

.PHONY: chaos
chaos: setup ## Kill deploys at 50 random points, and see that the next one finishes them
	$(BIN)/molecule converge --scenario-name rolling
	$(BIN)/python -m tests.chaos --inventory molecule/rolling/inventory --host molecule-rolling2 --points 50
	$(BIN)/molecule destroy --scenario-name rolling

.PHONY: bundle
bundle: setup ## Collect an engine for hosts without a network: VERSION=0.5.23 [PYTHONS=3.11]
	$(BIN)/python scripts/bundle.py $(or $(VERSION),$(error name the engine: make bundle VERSION=0.5.23)) \
	  $(PYTHONS:%=--python %)

.PHONY: lint
lint: setup ## Check style, types, playbooks and roles
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) types
	$(BIN)/ansible-lint

.PHONY: types
types: setup ## Check the types
	$(BIN)/mypy $(SOURCES)

.PHONY: setup
setup: $(VENV)/.complete ## Install what this machine needs (packages, virtual environment)

$(VENV)/.complete: requirements/dev.txt
	scripts/packages $(PACKAGES)
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	touch $@

.PHONY: lock
lock: ## Lock the controller's and the developers' packages again (needs uv)
	for name in controller dev; do \
	  uv pip compile pyproject.toml $$([ $$name = dev ] && echo --group dev) --universal --upgrade \
	    --fork-strategy requires-python --generate-hashes --no-emit-index-url --no-annotate --quiet \
	    --custom-compile-command 'make lock' --output-file requirements/$$name.txt; \
	done

.PHONY: clean
clean: ## Stop and remove this checkout's sandbox, and only it
	$(PYTHON) -m sandbox clean

# Everything that a contributor or CI runs. Needs make, git and Python 3.11 or newer.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check

# The first of these that is new enough and can make virtual environments is used.
PYTHON ?= python3.13 python3.12 python3.11 python3
# Of `make test`: FAST=1 is for the loop of a developer, in less than two minutes; THOROUGH=1 tries all
# examples, seeds and crash points.
FAST ?=
THOROUGH ?=
EFFORT := $(if $(FAST),fast,$(if $(THOROUGH),thorough,usual))
ifneq ($(FAST),)
TESTS ?= tests/conformance/test_streams.py tests/simulation/test_simulation.py tests/unit
endif
# The longest first, so that all processes end at about the same time.
TESTS ?= $(wildcard tests/spark tests/torture tests/hostile tests/simulation tests/integration tests/conformance tests/power \
	tests/crashes tests/browser tests/unit)
# Tests run side by side: those that start processes wait three quarters of their time.
JOBS ?= 6
# `make lock UPGRADE=--upgrade` moves to the newest versions; without it only what must change does.
UPGRADE ?=
# Of `make torture`, `make hosts` and `make hostile`: how long, and which faults or attacks; without a seed they take a
# new one and print it.
MINUTES ?= 1
SEED ?=
# Of `make hosts S3=radosgw`: the contract of buckets, and a gateway that is killed under writers.
BUCKET_TESTS := tests/integration/test_bucket_contract.py tests/integration/test_bucket_s3.py tests/integration/test_radosgw.py
# Of `make bench`: what to measure.
BENCH ?= compare

# The tests start hundreds of processes: none of them shall compile what another has compiled.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test torture hosts hostile simulate power conformance-http conformance-jetstream bench check generate lock clean

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s  %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## Make .venv and install the locked dependencies and holdfast itself.

demo: $(STAMP) ## Store a git history in a cluster, kill a server meanwhile, compare every byte.
	$(BIN)/holdfast demo

test: $(STAMP) ## Run all tests; FAST=1 runs what takes two minutes: unit, a few simulations, one cluster; THOROUGH=1 tries more of each.
	@echo "Testing in $(TESTS)"
	@HOLDFAST_EFFORT=$(EFFORT) $(BIN)/pytest -n $(JOBS) --dist loadgroup $(TESTS)

torture: $(STAMP) ## Kill and stop the parts of a real cluster under load for MINUTES; check all.
	@$(BIN)/python -m tests.torture --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

hosts: $(STAMP) ## Torture a cluster on several hosts, as root on Linux, for MINUTES: FS=local, glusterfs, moosefs, cephfs; FENCE_READ, DELAY, FAULTS. S3=radosgw tries the bucket's contract instead.
	@$(if $(S3),HOLDFAST_TEST_S3=$(S3) $(BIN)/pytest $(BUCKET_TESTS),$(BIN)/python -m tests.hosts --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) \
		$(if $(FS),--fs $(FS)) $(if $(FENCE_READ),--fence-read $(FENCE_READ)) \
		$(if $(DELAY),--delay $(DELAY)) $(if $(FAULTS),--faults $(FAULTS)) $(if $(DATA),--data $(DATA)))

hostile: $(STAMP) ## Attack a real cluster as a hostile tenant for MINUTES, or with so many OPERATIONS; TOKENS=1 also with every kind of token.
	@$(BIN)/python -m tests.hostile --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) \
		$(if $(OPERATIONS),--operations $(OPERATIONS)) $(if $(TOKENS),--tokens)

simulate: $(STAMP) ## Run SEEDS simulated clusters under faults, or SEED again; TIERS=1 with a bucket, WIDE=1 with all there is, GRANTS=1 with tokens, JETSTREAM=1 with gateways, TIERS=1 ROLES=1 with servers for cold work; TRACE=1 shows all.
	@$(BIN)/python -m tests.simulation $(if $(SEEDS),--seeds $(SEEDS)) \
		$(if $(SEED),--seed $(SEED)) $(if $(TIERS),--tiers) $(if $(WIDE),--wide) $(if $(GRANTS),--grants) $(if $(JETSTREAM),--jetstream) $(if $(ROLES),--roles) $(if $(TRACE),--trace)

power: $(STAMP) ## Cut the power at every change of a file, of one SCENARIO or all; CUTS repeats a run.
	@$(BIN)/python -m tests.power $(if $(SCENARIO),--scenario $(SCENARIO)) \
		$(if $(SEED),--seed $(SEED)) $(if $(CUTS),--cuts $(CUTS))

conformance-jetstream: $(STAMP) ## Run other people's JetStream tests against the gateway; CHECKOUT of nats.py has more, SUITE, ONLY, KILL_EVERY=5, STRESS=30, IN_SERVER=1.
	@$(BIN)/python -m tests.jetstream_conformance $(if $(CHECKOUT),--checkout $(CHECKOUT)) \
		$(if $(SUITE),--suite $(SUITE)) $(if $(ONLY),--only "$(ONLY)") $(if $(TRIES),--tries $(TRIES)) \
		$(if $(KILL_EVERY),--kill-every $(KILL_EVERY)) $(if $(STRESS),--stress $(STRESS)) $(if $(AGAINST),--against $(AGAINST)) $(if $(IN_SERVER),--in-server)

conformance-http: $(STAMP) ## Run the tests of durable streams (332, of npm, needs Node), and those of its official client, against an HTTP gateway of a cluster; ONLY.
	@$(BIN)/python -m tests.http_conformance $(if $(ONLY),--only "$(ONLY)")

bench: $(STAMP) ## Measure BENCH (compare, jetstream, http, engine, users, idle, fairness, floor, kills, rebalance, large, tiers, spark, all) for ROUNDS; JSON=FILE, PROFILE=FOLDER.
	@$(BIN)/holdfast bench $(BENCH) $(if $(ROUNDS),--rounds $(ROUNDS)) \
		$(if $(JSON),--json $(JSON)) $(if $(PROFILE),--profile $(PROFILE))

generate: $(STAMP) ## Write the blocking API anew from the asyncio one, docs/api.md from the docstrings, and the table of docs/access.md.
	$(BIN)/python -P docs/generate/blocking_api.py
	$(BIN)/python -P docs/generate/api_page.py
	$(BIN)/python -P docs/generate/access_table.py
	$(BIN)/python -P docs/generate/metrics_table.py
	$(BIN)/python -P docs/generate/grafana_dashboard.py

check: $(STAMP) ## Run ruff, mypy (strict) and the import contracts; compare what is generated.
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -P docs/generate/blocking_api.py --check
	$(BIN)/python -P docs/generate/api_page.py --check
	$(BIN)/python -P docs/generate/access_table.py --check
	$(BIN)/python -P docs/generate/metrics_table.py --check
	$(BIN)/python -P docs/generate/grafana_dashboard.py --check

lock: $(STAMP) ## Write constraints.txt anew from pyproject.toml.
	$(BIN)/python -m venv $(VENV)/lock
	$(VENV)/lock/bin/pip install --quiet uv
	UV_CUSTOM_COMPILE_COMMAND="make lock" $(VENV)/lock/bin/uv pip compile --quiet $(UPGRADE) \
		--universal --python-version 3.11 --all-extras --generate-hashes \
		--output-file constraints.txt pyproject.toml

clean: ## Remove .venv, caches and build leftovers.
	rm -rf $(VENV) build dist holdfast_nats.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A command that is there may still not run (a version manager's shim), so each candidate is tried.
$(VENV)/bin/python:
	@set -eu; without_venv=; \
	for python in $(PYTHON); do \
		"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
		if "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
			echo "Making $(VENV) with $$python"; \
			exec "$$python" -m venv $(VENV); \
		fi; \
		without_venv="$$python"; \
	done; \
	if [ -n "$$without_venv" ]; then \
		echo "$$without_venv cannot make virtual environments: on Debian and Ubuntu," \
			"apt install python3-venv" >&2; \
	else \
		echo "holdfast needs Python 3.11 or newer; none of these is: $(PYTHON)." \
			"Install one, or name it: make PYTHON=/path/to/python3" >&2; \
	fi; \
	exit 1

# Shows how far pip is, and its last words and exit code if it fails.
define SHOW_PIP
'/^pip ended with / { code = $$4; exit } \
	{ last[NR % 40] = $$0 } \
	/^Collecting / { printf "  %d of %d  %-50.50s%s", ++found, total, $$2, end; fflush() } \
	/^Installing collected/ { printf "  %-65s\n", "all there; installing them takes a minute"; fflush() } \
	END { if (code == "") code = 1; \
		if (code) for (i = NR - 40; i < NR; i++) if (i > 0 && (i % 40) in last) print last[i % 40]; \
		exit code }'
endef

# Two steps, because pip verifies hashes only when it is given nothing but pinned requirements.
# PySpark is published as source alone: its wheel, half a minute of one processor, is built while all others
# are installed. pip would compile with one processor what all compile here; what this Python cannot compile
# (templates of code, old syntax) stays as it is, as with pip.
$(STAMP): pyproject.toml constraints.txt | $(VENV)/bin/python
	@total=$$(grep -c '^[a-zA-Z0-9].*==' constraints.txt); \
	echo "Installing holdfast and at most $$total packages, 1.5 GB in $(VENV) (two thirds of it for Spark)"; \
	if [ -t 1 ]; then end='\r'; else end='\n'; fi; \
	parts=$(VENV)/parts; rm -rf $$parts; mkdir $$parts; \
	awk -v parts=$$parts '/^[a-zA-Z0-9]/ { part = /^pyspark==/ ? "built" : "others" } \
		part { print > (parts "/" part) }' constraints.txt; \
	building=; \
	if [ -e $$parts/built ]; then \
		$(PIP) wheel --quiet --no-deps --wheel-dir $$parts --require-hashes --requirement $$parts/built >$$parts/log 2>&1 & \
		building=$$!; \
		trap "kill $$building; exit 1" INT TERM; \
	fi; \
	{ $(PIP) install --no-color --progress-bar off --no-deps --no-compile \
		--require-hashes --requirement $$parts/others 2>&1; echo "pip ended with $$?"; } \
		| awk -v total="$$total" -v end="$$end" $(SHOW_PIP) || { [ -z "$$building" ] || kill $$building; exit 1; }; \
	if [ -n "$$building" ]; then \
		wait $$building || { cat $$parts/log; exit 1; }; \
		$(PIP) install -qq --no-deps --no-index --no-compile $$parts/*.whl || exit 1; \
	fi; \
	rm -rf $$parts
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	@$(PIP) install -qq --no-deps --no-build-isolation --editable .
	@touch $@

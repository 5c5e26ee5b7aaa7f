# gnsqd from a clean clone: `make run` serves, `make test` proves it. Every target makes what it needs and may be repeated.
#
#   make run FLAGS="--mem-queue-size=500"     make test TESTS="tests/unit -k codec"     make PYTHON=python3.13 test

PYTHON ?= python3
FLAGS ?=
TESTS ?=

export PYTHON

PEERS := tests/peers/bin/.built
PROMTOOL := tests/peers/bin/promtool
VERSITYGW := tests/peers/bin/versitygw
OLD_SPARK := build/old-spark/.installed
# pytest keeps what it made of each test file: making it takes longer than many a folder's tests.
CACHING := PYTHONDONTWRITEBYTECODE=
# Tests mostly wait, for processes and for time to pass, so there may be more at once than there are cores.
WORKERS := 3
PYTEST = $(CACHING) GNSQD_EXPECT_LANE=$$(cat $(1)/.lane) $(1)/bin/pytest -n $(WORKERS) --dist=worksteal

.PHONY: help run compiled wheels check test test-all test-plain test-spark test-old-spark peers bench bench-scale spark-faults
.PHONY: spark-bench spark-example faults attacks differential soak cluster fuzz docs options screens release-check lint types format clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{ printf "make %-14s %s\n", $$1, $$2 }' Makefile

run: ## serve on ports 4150 and 4151, with the data in ./data
	@.ci/install .venv
	@mkdir -p data
	@exec .venv/bin/gnsqd --data-path=data $(FLAGS)

compiled: ## compile the hot modules for the other targets, such as `run`, which takes minutes; needs a C compiler
	@.ci/install --compiled .venv

wheels: ## the packages of a release in ./dist: source, plain wheel, and wheel compiled for this Python and machine
	@.ci/install --compiled .venv
	@rm -rf dist && cp -R .venv/dist dist
	@GNSQD_COMPILE= .venv/bin/python -m build --no-isolation --wheel --outdir dist .venv/source >.venv/.log 2>&1 || \
		{ cat .venv/.log; exit 1; }
	@ls dist

check: VENV := .venv
check: MARKS := not slow and not peer and not spark
check: ## the budget of lines, and the unit tests on the source tree as it is: nothing is built
	@.ci/install --dependencies $(VENV) dev
	@$(VENV)/bin/python tools/weight.py
	@$(CACHING) PYTHONPATH=.:contrib $(VENV)/bin/pytest -n $(WORKERS) --dist=worksteal -m "$(MARKS)" $(or $(TESTS),tests/unit)

# The installed package is tested, compiled after `make compiled`.
test: WORKERS := 4
test: ## the installed package, in minutes; needs no Go, Java or Node
	@.ci/install .venv dev
	@$(call PYTEST,.venv) -m "not slow and not peer and not spark" $(TESTS)

test-all: MARKS := not spark
test-all: ## the same with the slow tests, and with the real nsqd after `make peers`
	@.ci/install .venv dev
	@$(call PYTEST,.venv) -m "$(MARKS)" $(TESTS)

test-plain: MARKS := not spark and not one_lane
test-plain: ## what may differ where no module is compiled
	@.ci/install .venv-plain dev
	@$(call PYTEST,.venv-plain) -m "$(MARKS)" $(TESTS)

test-spark: ## the Spark side, with Spark installed; needs Java 17 or 21
	@.ci/install .venv-plain dev,spark
	@PYTHONPATH=tests .venv-plain/bin/python -m kit.table_formats
	@PYTHONPATH=tests .venv-plain/bin/python -m spark.shared_classes
	@$(call PYTEST,.venv-plain) tests/spark $(TESTS)

# Those whose results depend on the versions of Spark and pyarrow; one worker, as each starts a JVM.
test-old-spark: WORKERS := 1
test-old-spark: ## sources and sinks with the oldest Spark and pyarrow that pyproject.toml allows
	@.ci/install .venv-plain dev,spark
	@$(MAKE) --no-print-directory $(OLD_SPARK)
	@PYTHONPATH=$(dir $(OLD_SPARK)):tests .venv-plain/bin/python -m kit.table_formats
	@PYTHONPATH=$(dir $(OLD_SPARK)) $(call PYTEST,.venv-plain) -m "not peer" tests/spark/test_catalog.py \
		$(patsubst %,tests/spark/unit/test_%.py,columns diskqueue writer) \
		$(patsubst %,tests/spark/test_%.py,ranges read_stream table_formats write) $(TESTS)

$(OLD_SPARK): pyproject.toml
	@rm -rf $(dir $@)
	@.venv-plain/bin/pip install --quiet --disable-pip-version-check --retries 8 --no-deps --target $(dir $@) \
		$$(sed -n '/^spark = /{s/.*\[\(.*\)\]/\1/;s/,<[0-9.]*//;s/[",]//g;s/>=\([0-9.]*\)/==\1.*/gp}' $<)
	@touch $@

peers: $(PEERS) $(PROMTOOL) $(VERSITYGW) ## the programs of the real NSQ, promtool and an object store, for tests; needs Go

$(PEERS): tests/peers/go.mod tests/peers/go.sum tests/peers/peers.go $(wildcard tests/peers/load/*.go)
	@command -v go >/dev/null || { echo "make peers needs Go"; exit 1; }
	@mkdir -p tests/peers/bin
	cd tests/peers && go build -o bin/ $$(go list -e -tags peers -f '{{join .Imports " "}}' .) ./load
	@touch $@

$(PROMTOOL): PACKAGE := -tags=remove_all_sd github.com/prometheus/prometheus/cmd/promtool
$(VERSITYGW): PACKAGE := github.com/versity/versitygw/cmd/versitygw
$(PROMTOOL) $(VERSITYGW): tests/peers/bin/%: tests/peers/%.mod tests/peers/%.sum
	@mkdir -p $(@D)
	@cp $^ $(@D)
	cd $(@D) && go build -modfile=$*.mod -mod=mod $(PACKAGE)
	@touch $@

bench: $(PEERS) ## throughput, latency and memory, with the real nsqd in the same run
	@.ci/install --compiled .venv dev
	@.ci/install .venv-plain dev
	@.venv/bin/python tools/benchmarks $(FLAGS)

# What great numbers of topics, channels and connections cost, as a table and as a plot in contrib/docs.
bench-scale: $(PEERS) ## many topics, channels and connections
	@.ci/install --compiled .venv bench
	@.ci/install .venv-plain
	@.venv/bin/python tools/benchmarks --runs=1 --rows 'scale-*' --plot=contrib/docs/scale.png $(FLAGS)

# What kills, losses of power, full disks and set clocks cost, ours and the real nsqd: the table of
# contrib/docs/reliability.md, in about an hour.
faults: $(PEERS) $(VERSITYGW) ## kills, losses of power and of machines, full disks: an hour
	@.ci/install --compiled .venv dev
	@PYTHONPATH=tests:tools .venv/bin/python -m faults $(FLAGS)

# Freezes of the daemon, floods of its page, hostile nodes, time-outs in many channels; FLAGS="--rows=page".
attacks: $(PEERS) ## freezes, floods, hostile nodes: figures with limits
	@.ci/install --compiled .venv dev
	@PYTHONPATH=tests:tools .venv/bin/python -m faults.attacks $(FLAGS)

# Random sessions played to the real nsqd and to gnsqd, and every answer compared: FLAGS="--steps=1000000 --seed=1".
differential: $(PEERS) ## random sessions with gnsqd and the real nsqd
	@.ci/install --compiled .venv dev
	@PYTHONPATH=tests:tools .venv/bin/python -m model.differential $(FLAGS)

# An hour of mixed load on gnsqd, after which nothing is lost and nothing has grown: FLAGS="--durability=process".
soak: ## an hour of mixed load
	@.ci/install --compiled .venv dev
	@PYTHONPATH=tests:tools .venv/bin/python -m faults.soak $(FLAGS)

# An hour of three gnsqd and two nsqlookupd in network namespaces, with the troubles of operators: FLAGS="--minutes=10".
cluster: ## an hour of a cluster with changing DNS, idle channels, blocked logs and tokens
	@.ci/install --compiled .venv dev
	@PYTHONPATH=tests:tools .venv/bin/python -P -m faults.cluster $(FLAGS)

# Calls that fail, and input that is cut, damaged and invalid, with each client in Python and in C: FLAGS="--seconds=3600".
fuzz: ## broken input and failing calls for the native sockets, under AddressSanitizer
	@.ci/install --compiled .venv dev
	@.ci/fuzz .venv/bin/python $(FLAGS)

# What kills and restarts cost a Spark stream: the tables of contrib/docs/spark.md, in half an hour.
spark-faults: ## kills and restarts beside a Spark stream
	@.ci/install .venv-plain dev,spark
	@PYTHONPATH=tests .venv-plain/bin/python -m kit.table_formats
	@PYTHONPATH=tests:tools .venv-plain/bin/python -m spark.faults $(FLAGS)

# Rows per second of Spark's readers and writers, with gnsqd and the real nsqd.
spark-bench: $(PEERS) ## rows per second of Spark's readers and writers
	@.ci/install --compiled .venv dev
	@.ci/install .venv-plain dev,spark
	@GNSQD_BIN=$(CURDIR)/.venv/bin/gnsqd PYTHONPATH=tests:tools .venv-plain/bin/python -m spark.bench $(FLAGS)

# A million events archived, rolled up and replayed; the test of it in `make test-spark` takes fewer.
spark-example: ## a million events archived, rolled up and replayed
	@.ci/install .venv-plain dev,spark
	@GNSQD_EXAMPLE_EVENTS=1000000 .venv-plain/bin/pytest tests/spark/test_pipeline_example.py $(FLAGS)

# The documents as a site, in build/docs; a warning is an error.
docs: ## the documents as a site, in build/docs
	@.ci/install --dependencies .venv docs
	@.venv/bin/python -m sphinx -q -W --keep-going -c contrib/docs -d build/doctrees . build/docs
	@echo "build/docs/index.html"

# The config file and the page about options, from the table in gnsqd/options.py; the page about gnsqadmin, from itself;
# what the page about Spark says of options, from theirs; those about HTTP, TCP and statistics, from the tables of each;
# the picture of speed in the README, from the table in performance.md.
options: ## the pages and files that are made from tables
	@.ci/install .venv dev
	@.venv/bin/python tools/documents

# Pictures of gnsqadmin at work, in contrib/docs/screens; those of its page need Chromium, and the ports of `gnsqd --dev`.
screens: ## the pictures of gnsqadmin
	@.ci/install .venv dev,browser
	@.venv/bin/python tools/documents --screens

release-check: ## sdist and wheels, each built, installed in an empty environment and started
	@.ci/release-check

lint: ## ruff, and what may import what
	@.ci/install --dependencies .venv dev,lint
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	@PYTHONPATH=contrib .venv/bin/lint-imports --no-logo --no-cache

# With Spark installed, whose types the Spark side needs.
types: ## mypy
	@.ci/install --dependencies .venv-plain dev,spark
	.venv-plain/bin/mypy

format: ## ruff puts the code into shape
	@.ci/install .venv dev
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

# Everything that the other targets made, except ./data.
clean: ## remove what the other targets made, except ./data
	rm -rf .venv .venv-plain build dist *.egg-info tests/peers/bin
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	find . -name __pycache__ -prune -exec rm -rf {} +
	find gnsqd -name '*.so' -delete

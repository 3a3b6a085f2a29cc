# Everything runs in .venv, with SPARK=4.2 in .venv-4.2; `make help` lists what there is.
.DEFAULT_GOAL := help

# A version of Spark in place of the locked one.
SPARK ?=
VENV := .venv$(SPARK:%=-%)
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
CLASSES := $(VENV)/spark-classes.jsa
ROWS ?=
WORKERS ?= 2
PYTEST_ARGS ?=
# Which of the long tests `make test-slice` runs, and for how long.
ifndef SEED
SEED := $(shell date +%s)
endif
SECONDS ?= 90
MINUTES ?= 10
FUZZ_ARGS ?=
COUNT ?= 300
MUTATE_ARGS ?=

# Spark's Python workers run $PYSPARK_PYTHON, not the interpreter of the driver.
export PYSPARK_PYTHON := $(CURDIR)/$(PY)
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(PY)

# Spark starts several Python processes for each query: without compiled files each would compile the project anew.
unexport PYTHONDONTWRITEBYTECODE

# Prefix of every command that starts Spark: finds or installs Java 17+, or stops and says how to get it.
WITH_JAVA = JAVA_HOME="$$(sh scripts/java.sh)" && export JAVA_HOME &&

# A test opens the page of `deltajoin ui` in a browser: finds or installs one, or says how to get it.
WITH_BROWSER = { sh scripts/chromium.sh >/dev/null || true; } &&

# Options of pytest: the tests of a file stay together, files are begun in their order.
IN_PARALLEL = --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: help install java demo demo-kafka servers test test-delta test-long test-slice fuzz mutate bench bench-store bench-kafka bench-views bench-cluster wheel wheel-test docs lint clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP)  ## make .venv and install everything into it (SPARK=4.2: and .venv-4.2; so with all that follow)

.venv/.installed: pyproject.toml requirements.lock scripts/venv.sh scripts/packages.sh scripts/worker_path.py
	@sh scripts/venv.sh .venv
	sh scripts/packages.sh .venv/bin/python --constraint requirements.lock --editable '.[dev]'
	@.venv/bin/python scripts/worker_path.py
	@touch $@

# It has PySpark alone, of that version; all else is that of .venv, which stands behind it on the path.
.venv-%/.installed: .venv/.installed
	@.venv/bin/python -m venv --without-pip --clear $(@D)
	sh scripts/packages.sh $(@D)/bin/python --no-deps 'pyspark==$*.*'
	@$(@D)/bin/python -c 'import pathlib, sysconfig; own = sysconfig.get_path("purelib"); \
	  pathlib.Path(own, "behind.pth").write_text("import site; site.addsitedir(%r)\n" % own.replace("$(@D)", ".venv"))'
	@touch $@

# Before what needs it beside something else that does: two at once would both install it.
java: .venv/.installed
	@sh scripts/java.sh >/dev/null

$(CLASSES): $(STAMP) scripts/class_archive.py | java
	@$(WITH_JAVA) $(PY) scripts/class_archive.py $@

demo: $(CLASSES)  ## join the flights of 2013 with all else while it changes (ROWS=20000 for a short run)
	@$(WITH_JAVA) $(PY) -m examples.flights $(if $(ROWS),--rows $(ROWS))

demo-kafka: $(CLASSES)  ## carry them through Kafka: Debezium records to upsert topics, exactly once (ROWS=20000)
	@$(WITH_JAVA) $(PY) -m examples.flights --kafka $(if $(ROWS),--rows $(ROWS))

servers: $(STAMP) | java  ## fetch what tests start: Kafka, Azurite and a browser (a test that finds none fetches it)
	@$(WITH_BROWSER) $(WITH_JAVA) $(PY) -m tests.servers

test: $(CLASSES)  ## all tests that a change must pass (PYTEST_ARGS=… is passed on, WORKERS=0: one after the other)
	@$(WITH_BROWSER) $(WITH_JAVA) $(PY) -m pytest $(IN_PARALLEL) $(PYTEST_ARGS)

test-delta: .venv-4.2/.installed | java  ## those of Delta Lake, with Spark 4.2, for which it has a release
	@$(WITH_JAVA) PYSPARK_PYTHON=$(CURDIR)/$(<D)/bin/python PYSPARK_DRIVER_PYTHON=$(CURDIR)/$(<D)/bin/python \
	  $(<D)/bin/python -m pytest tests/upsert/delta -k "not session_without_delta" $(PYTEST_ARGS)

test-long: $(CLASSES)  ## random, crash and race tests with large counts
	@$(WITH_JAVA) $(PY) -m pytest $(IN_PARALLEL) -m "long or hypothesis" --hypothesis-profile=long -o faulthandler_timeout=7200 $(PYTEST_ARGS)

test-slice: $(CLASSES)  ## some of the long tests, others in every run (SEED=… repeats one, SECONDS=90)
	@echo "make test-slice SEED=$(SEED) SECONDS=$(SECONDS)"
	@$(WITH_JAVA) $(PY) -m pytest -p tests.long_slice --slice-seed=$(SEED) --slice-seconds=$(SECONDS) \
	  --hypothesis-seed=$(SEED) $(IN_PARALLEL) -m "(long or hypothesis) and not minutes" --hypothesis-profile=slice $(PYTEST_ARGS)

fuzz: $(STAMP)  ## random queries over random histories beside Spark's batch (SEED=…, MINUTES=10, FUZZ_ARGS=--only)
	@$(WITH_JAVA) $(PY) -m tests.planner.fuzz --seed $(SEED) --minutes $(MINUTES) $(FUZZ_ARGS)

mutate: $(STAMP)  ## change the pure core in small ways and see that its tests notice (COUNT=300, SEED=…, MUTATE_ARGS=--again)
	@CI=1 $(PY) scripts/mutate.py --count $(COUNT) --seed $(SEED) $(MUTATE_ARGS)

bench: $(STAMP)  ## measure the store, the sink, commits, the join, its tasks and lookups; tables, JSON and plots
	@$(WITH_JAVA) $(PY) -m bench.store
	@$(WITH_JAVA) $(PY) -m bench.sink
	@$(WITH_JAVA) $(PY) -m bench.committing
	@$(WITH_JAVA) $(PY) -m bench.join
	@$(PY) -m bench.shards
	@$(PY) -m bench.lookups

bench-store: $(STAMP)  ## measure the managed table beside Delta Lake, DuckDB, pyarrow and Parquet, and with a million files
	@$(WITH_JAVA) $(PY) -m bench.store
	@$(WITH_JAVA) $(PY) -m bench.delta
	@$(PY) -m bench.scale

bench-kafka: $(STAMP)  ## measure Kafka source, normalizer and sink beside a plain client loop, and the log of a table
	@$(WITH_JAVA) $(PY) -m bench.kafka
	@$(WITH_JAVA) $(PY) -m bench.log_latency

bench-views: $(STAMP)  ## measure refreshes of TPC-H's queries beside Spark and DuckDB (an hour)
	@$(WITH_JAVA) $(PY) -m bench.views

bench-cluster: $(STAMP)  ## measure a join and upserts on a standalone cluster over an S3 server, executors killed
	@$(WITH_JAVA) $(PY) -m bench.cluster

wheel: $(STAMP)  ## build the wheel and the source distribution into dist/, and build/release-notes.md from CHANGELOG.md
	@rm -rf build dist
	@$(PY) -m build --outdir dist
	@mkdir -p build && $(PY) scripts/release_notes.py > build/release-notes.md

wheel-test: wheel  ## install the wheel into an empty environment, Spark too, and run the README's example and the first notebook
	@$(WITH_JAVA) $(PY) scripts/wheel_test.py dist/*.whl

docs: $(STAMP)  ## build the site of these pages into build/site
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict
	@echo build/site/index.html

lint: $(STAMP)  ## ruff and mypy --strict
	$(PY) -m ruff check .
	$(PY) -m mypy upsert deltajoin planner examples bench pyspark_upsert_table.py deltajoin_command.py deltajoin_daemon.py

clean:  ## remove .venv, caches and build output
	rm -rf .venv .venv-* mutants build dist ./*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

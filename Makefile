# The verbs of this repository. `make` lists them; each does its own set-up and may be run again.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# Without bytecode each process that shares the tests reads and rewrites all their sources at every run. Each
# process that a test starts would also compile Headway again.
unexport PYTHONDONTWRITEBYTECODE

# Debian's interpreter: the same one, at the same path, as in the base image.
SYSTEM_PYTHON ?= /usr/bin/python3
VENV = $(shell $(SYSTEM_PYTHON) hack/python/env.py path)
PY = $(VENV)/bin/python
PYTEST = $(PY) -m pytest --durations=10 $(PYTEST_ARGS)
# So many tests at a time (see tests/conftest.py). Most wait for something, so there may be more than cores;
# WORKERS=0: one after another.
WORKERS ?= 3
TOGETHER = $(PYTEST) -n $(WORKERS) --no-loadscope-reorder
ORACLES = $(shell $(SYSTEM_PYTHON) hack/python/env.py path --oracles)/bin/python
# LONG selects which of the longer tests `make test`, `make test-integration` and `make test-e2e` add.
MARKS_ = not ci and not long and not chaos
MARKS_ci = not chaos and not long
MARKS_all = not chaos
CHOSEN = -m "$(MARKS_$(LONG))"
# A folder of them, for `make test-long`.
IN ?= tests
SOURCES = api analysis cli coordinator operator rollout trainer sandbox wire tests examples bench hack
LOCAL_CLUSTER = $(SYSTEM_PYTHON) hack/cluster/cluster.py
IMAGES = $(SYSTEM_PYTHON) hack/images/build.py
GPU_PYTHON ?= python3
GPU_PATH = bench/accelerator/older:api:trainer:rollout:wire:tests/support:.

.PHONY: help
help: ## list these targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 20

.PHONY: venv oracles lock print-venv
venv: ## create the Python environment (first time: 2 minutes, 6 GB; later: nothing to do)
	@$(SYSTEM_PYTHON) hack/python/env.py venv
oracles: ## the same with verl and trl, which some unit tests compare with
	@$(SYSTEM_PYTHON) hack/python/env.py venv --oracles
lock: ## resolve pyproject.toml into requirements/*.txt again (LOCK_ARGS=--upgrade takes newer versions)
	@$(SYSTEM_PYTHON) hack/python/env.py lock $(LOCK_ARGS)
print-venv: ## print where the environment is
	@echo $(VENV)

.PHONY: lint format types crds dashboards dashboard-pictures
lint: venv ## ruff: rules and format; deptry: each extra against what its process imports; and whether pages, docstrings, comments, messages and names are in plain words
	$(PY) -m ruff check $(wildcard $(SOURCES))
	$(PY) -m ruff format --check $(wildcard $(SOURCES))
	$(PY) hack/python/extras.py
	$(PY) hack/prose
format: venv ## ruff: rewrite what it can
	$(PY) -m ruff format $(wildcard $(SOURCES))
	$(PY) -m ruff check --fix $(wildcard $(SOURCES))
	$(PY) -m ruff format $(wildcard $(SOURCES))
.PHONY: docs
docs: ## build the documentation as a site, build/site; a link or an anchor that leads nowhere fails (REPOSITORY=address: where links out of docs/ lead)
	"$$($(SYSTEM_PYTHON) hack/python/env.py tool docs)" hack/docs/site_of_docs.py $(if $(REPOSITORY),--repository $(REPOSITORY))
.PHONY: audit
audit: ## hold the locks against hack/audit/policy.toml: vulnerabilities, licences; build/audit/*.cdx.json are bills of materials (minutes; LOCKS="trainer cli": some)
	"$$($(SYSTEM_PYTHON) hack/python/env.py tool audit)" hack/audit/audit.py $(AUDIT_ARGS) $(LOCKS)
types: venv ## mypy, strict, on the packages
	$(PY) -m mypy
crds: venv ## write crds/, the chart's copies and the reference page from the models in api/
	$(PY) -m headway_api.crd crds
	$(PY) -m headway_api.crd charts/headway/files/crds
	$(PY) -m headway_api.docs docs/reference/crds.md
	$(PY) -m headway_api.recipes --policy charts/headway/files/guard-rails.yaml
dashboards: venv ## write the Grafana dashboards of the chart from the metric families
	PYTHONPATH=hack/dashboards $(PY) -m headway_dashboards charts/headway/files/dashboards
# Where the pictures come from, and what Prometheus has scraped of the jobs on the cluster.
FROM ?= cluster
RECORD ?= build/dashboards
dashboard-pictures: venv ## draw docs/dashboards/*.png from jobs that run on the cluster (10 minutes; FROM=record: from the last such run; FROM=played: from a played job, 2 minutes)
	$(if $(filter cluster,$(FROM)),KEEP_RECORD=$(abspath $(RECORD)) $(PYTEST) tests/e2e/test_dashboards.py)
	PYTHONPATH=hack/dashboards:tests/support $(PY) -m headway_dashboards.pictures docs/dashboards $(if $(filter played,$(FROM)),,--record $(RECORD))

.PHONY: models
models: venv ## write docs/models.md: how the tool calls of models are read, by a job's own code, from packages that ship their templates (a minute)
	PYTHONPATH=tests/support $(PY) tests/support/models_page.py docs/models.md

.PHONY: troubleshooting
troubleshooting: venv ## write docs/troubleshooting.md from the catalogue of faults
	$(PY) -m headway_analysis.faults.page

.PHONY: preflight-page
preflight-page: venv ## write docs/preflight.md from the definitions of the checks
	$(PY) -m headway_analysis.preflight.page

.PHONY: signals test-signals
signals: venv ## write docs/signals.md, the runbooks of signals and the chart's list of them from their definitions
	$(PY) -m headway_analysis.signals.page
test-signals: venv ## how soon each recorded symptom raises a signal, and how often a clean run raises one: bench/results/signals.md (a minute)
	PYTHONPATH=. $(PY) -m tests.signals.page --write

.PHONY: report-pictures
report-pictures: venv ## draw docs/report/*.png: reports in a real browser, and the checks on them (2 minutes)
	mkdir -p docs/report
	REPORT_PICTURES=$(CURDIR)/docs/report $(PYTEST) tests/integration/pages

.PHONY: test-traps
test-traps: venv ## what the preflight's checks find in tasks with one fault each, and in clean ones over ten seeds: bench/results/traps.md (minutes)
	PYTHONPATH=.:tests/support $(PY) -m tests.traps.page --write

.PHONY: test test-unit test-oracles test-integration test-clients test-e2e test-long test-chaos test-hostile test-remedies test-bill test-faults
test: export CHAOS_KILLS ?= 1
test: venv ## unit, integration, end to end; the cluster is stopped again if it was started here (LONG=ci: those that .ci/run adds too, LONG=all: all)
	$(TOGETHER) $(CHOSEN) tests
test-unit: venv ## pure functions, and a few small processes of this machine
	$(TOGETHER) tests/unit
test-oracles: oracles ## the objective against verl and TRL, value and gradient (a minute; the first time an environment of 7 GB)
	$(ORACLES) -c "import trl, verl"
	$(ORACLES) -m pytest --durations=10 $(PYTEST_ARGS) tests/unit/trainer/test_oracle_*.py
test-integration: venv ## against real vLLM, DeepSpeed, S3 and MLflow on this machine (LONG: as with test)
	$(TOGETHER) $(CHOSEN) tests/integration
test-clients: CLIENTS = test_client_types.py test_conformance.py test_other_clients.py test_frameworks.py test_two_user_turns.py test_edited_contexts.py test_coding_agent.py test_agent_faults.py
test-clients: venv ## other people's agents and clients, each with the packages of requirements/guests, through whole episodes (2 minutes)
	$(TOGETHER) $(addprefix tests/integration/coordinator/,$(CLIENTS))
test-e2e: venv ## jobs from apply to their end on a real cluster, started and stopped if none is up (LONG: as with test)
	$(PYTEST) $(CHOSEN) tests/e2e
test-long: venv ## the rest: processes killed in a job, full weights in vLLM, learner and vLLM together, clusters killed
	$(TOGETHER) -m long $(IN)
test-chaos: export CHAOS_KILLS ?= 20
test-chaos: venv ## coordinator, servers, agents, sandboxes and learners killed at random, CHAOS_KILLS times each (20: over an hour)
	$(TOGETHER) -m chaos tests/integration
test-hostile: export HOSTILE_COUNT ?= 10000
test-hostile: export HOSTILE_CASES ?= 1000
test-hostile: export HOSTILE_SEED ?= $(shell date +%s)
test-hostile: venv ## drawn at random: HOSTILE_COUNT hostile custom resources on a cluster, and HOSTILE_CASES messages, as many of each route by schemathesis (HOSTILE_SEED: the same again)
	$(TOGETHER) -m hostile tests
test-remedies: venv ## each remedy ordered of a running job on a cluster, and a process killed in the middle of it (40 minutes)
	$(PYTEST) tests/e2e/test_remedies.py
test-bill: export BILL_RUNS ?= 2000
test-bill: export CHAOS_KILLS ?= 10
test-bill: venv ## BILL_RUNS lives of jobs under budgets as state machines, and a real job with CHAOS_KILLS kills, stopped, resumed and recounted (ten minutes)
	$(PYTEST) tests/unit/coordinator/test_budget_machine.py tests/unit/operator/test_namespace_budget_machine.py \
		tests/integration/coordinator/test_budget_job.py
test-faults: venv ## every fault of docs/troubleshooting.md on a cluster, also those that only episodes show (a quarter of an hour)
	$(PYTEST) tests/e2e/test_faults.py

bench-idle: venv ## what idle jobs cost the operator and the coordinator: bench/results/idle.md (5 minutes on quiet cores; IDLE_JOBS=1,10 and IDLE_SECONDS=10: less; ONLY=coordinator: a section)
	PYTHONPATH=.:tests/support $(PY) -m bench.idle $(if $(ONLY),--only $(ONLY))
.PHONY: bench-idle bench-strangers bench-rollout bench-learner bench-learning bench-eval bench-remedies bench-preflight bench-estimate bench-gpu
bench-rollout: venv ## what the gateway, asynchrony and weight updates cost and gain: bench/results/rollout.md (half an hour; ONLY=gateway: a section)
	PYTHONPATH=.:tests/support $(PY) -m bench.rollout $(if $(ONLY),--only $(ONLY))
bench-strangers: venv ## HOSTILE_CASES hostile requests (10,000) to each route of a turn, and what they cost the gateway: bench/results/strangers.md (15 minutes)
	PYTHONPATH=.:tests/support $(PY) -m bench.strangers
bench-learner: oracles venv ## an optimizer step against TRL's and bare PyTorch, one row against one a turn, memory, deltas: bench/results/learner.md (a quarter of an hour; ONLY=memory: a section)
	PYTHONPATH=.:tests/support $(PY) -m bench.learner $(if $(ONLY),--only $(ONLY))
bench-gpu: ## the learner on one NVIDIA GPU, right and fast: bench/results/accelerator.md (5 minutes; GPU_PYTHON: one with torch for CUDA, requirements/trainer.txt and TRL; ONLY=steps: a section)
	PYTHONPATH=$(GPU_PATH) $(GPU_PYTHON) -m bench.accelerator $(if $(ONLY),--only $(ONLY)) $(if $(OUT),--out $(OUT))
bench-learning: venv ## the demo's job with three losses and three seeds each: bench/results/learning.md (over two hours; ONLY=cispo: one loss; ONLY=page: the page again)
	PYTHONPATH=.:tests/support $(PY) -m bench.learning $(if $(ONLY),--only $(ONLY))
bench-eval: export SYSTEM_PYTHON := $(SYSTEM_PYTHON)
bench-eval: venv ## an evaluation's episodes a second against vLLM's own limit and against Inspect AI: bench/results/evaluation.md (8 minutes; ONLY=speed: a section, ONLY=page: the page again)
	PYTHONPATH=.:tests/support $(PY) -m bench.evaluation $(if $(ONLY),--only $(ONLY))
bench-remedies: venv ## a job whose loss collapses, with and without remedies, three seeds: bench/results/remedies.md (half an hour; ONLY=seed-0: one seed, ONLY=page: the page again)
	PYTHONPATH=.:tests/support $(PY) -m bench.remedies $(if $(ONLY),--only $(ONLY))

bench-estimate: venv ## what six whole jobs cost against what their preflights said: bench/results/estimate.md (5 minutes on quiet cores)
	PYTHONPATH=.:tests/support nice -n 15 $(PY) -m tests.estimate.page
bench-preflight: venv ## what the preflight's checks cost, and how often they are wrong: bench/results/preflight.md (a minute; ONLY=cost: a section)
	PYTHONPATH=.:tests/support $(PY) -m bench.preflight $(if $(ONLY),--only $(ONLY))

.PHONY: record-signals
record-signals: venv ## record the series that signals are tested on, those that are missing (over an hour for all; SPLIT=held_out, ONLY="clean-*": some)
	PYTHONPATH=.:tests/support nice -n 15 $(PY) -m tests.signals.record $(if $(SPLIT),--split $(SPLIT)) $(if $(ONLY),--only $(foreach name,$(ONLY),'$(name)'))

.PHONY: try newcomer demo images image-base cluster-up cluster-down
demo: export DEMO_BEGUN := $(shell date +%s)
try: export DEMO_BEGUN := $(shell date +%s)
try: venv ## a model learns on this machine without a cluster, from job to bill (FRESH=1: from the beginning)
	$(PY) hack/demo/try_local.py
newcomer: venv ## follow README and first environment as a new user in an empty folder, each block timed (PARTS="page cluster": some; WARM=1: with this checkout's environment)
	$(PY) hack/newcomer/newcomer.py $(PARTS) $(if $(WARM),--warm)
demo: ## a model learns on a cluster on this machine, from apply to bill
	@$(SYSTEM_PYTHON) hack/demo/begin.py $(DEMO_ARGS)
images: ## build what a cluster pulls (gigabytes); IMAGE_ARGS="--push --prefix registry.example.com/headway"
	$(IMAGES) --all $(IMAGE_ARGS)
image-base: ## build the base image only
	$(IMAGES) base
cluster-up: ## start (or find) the cluster of this machine
	$(LOCAL_CLUSTER) up
cluster-down: ## stop it
	$(LOCAL_CLUSTER) down

.PHONY: clean
clean: ## remove what tools left in the checkout (the cache stays)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

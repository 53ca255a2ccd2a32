# `make` lists the targets. Each installs what it needs the first time. `./carride` has the operator's commands.

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON := $(CURDIR)/.venv-dev/bin/python
LIBRARY := layers/idempotency
# The SAM CLI, and a Python 3.13 with pip for its builds, come first.
export PATH := $(CURDIR)/.venv-sam/bin:$(PATH)
export SAM_CLI_TELEMETRY := 0
# Tests, demo and engine start hundreds of processes. Each would compile every module anew without the byte code of the last.
unexport PYTHONDONTWRITEBYTECODE

ENVIRONMENTS := .venv-dev/.synced .venv-engine/.synced .venv-sam/.synced
# Ctrl-C ends such a command in order, with status 130, which is no error.
UNTIL_CTRL_C := trap : INT;
NO_ERROR := || [ $$? -eq 130 ]
# Which tests run: those of this process alone, all but the long ones and those with peers, and these two.
UNIT := not integration and not proof and not peer and not thorough
SHORT := not peer and not thorough
LONG := peer or thorough

.venv-%/.synced: uv.lock .python-version tools/scripts/sync functions # a new function becomes importable
	@tools/scripts/sync $*
	@touch $@

##@ Run

.PHONY: setup demo invoke local-env engine
setup: $(ENVIRONMENTS) ## Install the three environments that tests need (every other target does so by itself): 10 s

demo: $(ENVIRONMENTS) ## Run the whole pipeline on this machine and print its ledger (ARGS="--rides 1000", ARGS=--worst, ARGS=--help): 1 min
	@$(UNTIL_CTRL_C) $(PYTHON) -m local.demo $(ARGS) $(NO_ERROR)

invoke: $(ENVIRONMENTS) ## Run one function with events, in order: FUNCTION=RideHistoryFunction EVENT="events/….json …" (ARGS=--containers)
	@$(PYTHON) -m local.invoke $(ARGS) "$(FUNCTION)" $(or $(EVENT),"")

local-env: $(ENVIRONMENTS) ## Write what `sam local invoke` needs for the kept demo, or for a stack on AWS (ARGS="--stack carride")
	@$(PYTHON) -m local.sam_local $(ARGS)

engine: $(ENVIRONMENTS) ## Run any SAM template on this machine until Ctrl-C: TEMPLATE=examples/minimal/template.yaml
	@test -n "$(TEMPLATE)" || { echo "set TEMPLATE to a SAM template: make engine TEMPLATE=examples/minimal/template.yaml" >&2; exit 2; }
	@$(UNTIL_CTRL_C) .venv-engine/bin/python -m engine run "$(TEMPLATE)" $(ARGS) $(NO_ERROR)

##@ Check

.PHONY: test test-unit test-library test-ops test-engine test-app test-peers lint format check
test: test-library test-ops test-engine test-app ## Run every test that needs nothing but this checkout: 6 min

test-unit: .venv-dev/.synced ## Run the tests that need nothing but this process, without a network: 55 s
	@cd $(LIBRARY) && $(PYTHON) -m pytest -q -n auto --maxprocesses 8 --dist worksteal -p no:schemathesis -m "$(UNIT)" $(ARGS)
	@$(PYTHON) -m pytest -q -n auto --maxprocesses 8 --dist worksteal -p no:schemathesis -m "$(UNIT)" $(ARGS)

test-library: .venv-dev/.synced ## Run the tests of layers/idempotency: 110 s
	@cd $(LIBRARY) && $(PYTHON) -m pytest -q -n auto --maxprocesses 8 -p no:schemathesis -m "$(SHORT)" $(ARGS)

test-ops: .venv-dev/.synced ## Run the tests of ops: 70 s
	@$(PYTHON) -m pytest -q -n auto --maxprocesses 8 -p no:schemathesis -m "$(SHORT)" ops/tests $(ARGS)

test-engine: $(ENVIRONMENTS) ## Run the tests of engine: 30 s
	@$(PYTHON) -m pytest -q -n 2 --dist loadfile -p no:schemathesis -m "$(SHORT)" engine/tests $(ARGS)

test-app: $(ENVIRONMENTS) ## Run the tests of the application, its template and its pipeline on the local engine: 3 min
	@$(PYTHON) -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m "$(SHORT)" tests $(ARGS)

test-peers: $(ENVIRONMENTS) ## Run the long tests, and those in containers, in a browser and on other servers; skip what is missing: 13 min
	@cd $(LIBRARY) && $(PYTHON) -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "$(LONG)" $(ARGS)
	@$(PYTHON) -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m "$(LONG)" $(ARGS)

lint: .venv-dev/.synced .venv-sam/.synced ## Check style, types, templates and the library's pages: 1 min
	@$(PYTHON) -m ruff check
	@$(PYTHON) -m ruff format --check
	@$(PYTHON) -m mypy
	@cd $(LIBRARY) && $(PYTHON) -m mypy
	@tools/scripts/check-templates
	@$(LIBRARY)/tools/docs build

format: .venv-dev/.synced ## Rewrite the code in the project's format
	@$(PYTHON) -m ruff format
	@$(PYTHON) -m ruff check --fix

check: lint test test-peers ## Check everything, as CI does: 21 min

##@ Measure and prove

.PHONY: compare bench simulate mutants costs
compare: .venv-dev/.synced ## Show what Powertools, a lock and this layer do in the same adversities (ARGS=--help): 20 s
	@cd $(LIBRARY) && $(PYTHON) -m tests.differential $(ARGS)

bench: $(ENVIRONMENTS) ## Measure the consumers beside the same on Powertools; a missed target fails (ARGS=--help): 3 min
	@$(PYTHON) -m tests.bench $(ARGS)

simulate: .venv-dev/.synced ## Live the whole application, then the layer under unusual handlers, in virtual time (ARGS="--seeds 1000", ARGS=--help)
	@$(PYTHON) -m tests.world $(ARGS)

mutants: .venv-dev/.synced ## Remove each rule of the library and each guard of the application, and expect its tests to go red (ARGS="--rule lease")
	@$(PYTHON) -m tests.mutants $(ARGS)

costs: .venv-dev/.synced ## Show a month's bill, what stops the stack first, and what records cost in each store (ARGS="--rides 50000 --regions 2")
	@$(PYTHON) -m tools.costs $(ARGS)

##@ Build and write

.PHONY: build contract new-consumer help
build: .venv-sam/.synced ## Build the functions and layers for `sam deploy`, with byte code for short cold starts: 20 s
	@sam build $(ARGS)
	@.venv-sam/bin/python tools/scripts/compile
	@.venv-sam/bin/python tools/scripts/unprepared

contract: .venv-dev/.synced ## Write what follows from types and template: schemas, samples, OpenAPI, parts of docs
	@$(PYTHON) -m tools.contract

new-consumer: .venv-dev/.synced ## Add a consumer, with everything that belongs to one: NAME=loyalty_points
	@$(PYTHON) -m tools.new_consumer "$(NAME)"
	@$(PYTHON) -m tools.contract
	@$(PYTHON) -m tools.contract

help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

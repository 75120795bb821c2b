# Every target works from a bare clone: it makes .venv, installs, then does its job.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A GPU user sets CONSTRAINTS= to let pip resolve accelerator builds.
CONSTRAINTS ?= -c constraints-cpu.txt
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0
export PYTHONUNBUFFERED = 1
# Bytecode is kept even where the environment says otherwise: without it, every process compiles all that
# it imports, and tests start hundreds.
export PYTHONDONTWRITEBYTECODE =
# Test processes; each takes a core and up to 3 GB.
WORKERS ?= 2

.PHONY: install run test test-slow nightly mutants frameworks ddp wan bench notebooks lint clean

# Bytecode is made of what is imported, not, as pip would, of all that is installed.
define IMPORT_ALL
import contextlib, importlib, pkgutil, sys
for package in sys.argv[1:]:
    for module in pkgutil.walk_packages([package], package + "."):
        with contextlib.suppress(Exception):  # whoever needs it will say why it is not there
            module.name.endswith("__main__") or importlib.import_module(module.name)
endef
export IMPORT_ALL

$(VENV)/core: pyproject.toml constraints-cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --no-compile --quiet --disable-pip-version-check $(CONSTRAINTS) -e ".[dev]"
	$(BIN)/python -c "$$IMPORT_ALL" jaxsim agents analysis experiments
	touch $@

install: $(VENV)/core

RUN := outputs/run-$(shell date +%Y%m%d-%H%M%S)

run: $(VENV)/core
	$(BIN)/hippo train --config experiments/configs/default.yaml --out $(RUN)/train
	$(BIN)/hippo evaluate --config experiments/configs/evaluate.yaml --checkpoint $(RUN)/train --out $(RUN)/evaluate
	$(BIN)/hippo report $(RUN)/evaluate $(RUN)/train

# All packages are tested, PyTorch's included. What is skipped, and why, is listed at the end.
test: lint $(VENV)/core $(VENV)/ddp
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --durations 10 -rs -m "not slow and not nightly"

# What takes longest to compile. CI runs `test` and `test-slow`.
test-slow: $(VENV)/core $(VENV)/ddp
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --durations 10 -rs -m "slow and not nightly"

# What fits neither of them, and the mutants; run before a change to what it covers is called done.
nightly: $(VENV)/core $(VENV)/ddp $(VENV)/scale
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --durations 10 -rs -m nightly
	$(MAKE) mutants

# Do the tests notice deliberate errors? Options go into ARGS, for example: make mutants ARGS="--only load"
mutants: $(VENV)/core $(VENV)/ddp
	PYTHONPATH=tests $(BIN)/python -m mutants --workers $(WORKERS) $(ARGS)

$(VENV)/ddp: pyproject.toml constraints-cpu.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --no-compile --quiet --disable-pip-version-check $(CONSTRAINTS) -e ".[ddp]"
	$(BIN)/python -c "$$IMPORT_ALL" ddp_bench
	touch $@

# Ray and pyarrow, for sweeps.
$(VENV)/scale: pyproject.toml constraints-cpu.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --no-compile --quiet --disable-pip-version-check $(CONSTRAINTS) -e ".[scale]"
	touch $@

# The frameworks that `hippo comparative` compares; tests do without them.
$(VENV)/toolbox: pyproject.toml constraints-cpu.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e ".[ddp,toolbox]"
	touch $@

# Options of the trainer go into ARGS, for example: make ddp ARGS="--dataset rows.tsv"
ddp: $(VENV)/ddp $(VENV)/toolbox
	$(BIN)/python -m experiments.ddp $(ARGS)

WAN := outputs/wan-$(shell date +%Y%m%d-%H%M%S)

# Real training over emulated links: the emulator measured, three plans predicted and trained, a page.
# Where namespaces cannot be made it says so in one line that begins with `skipped:`.
wan: $(VENV)/core $(VENV)/ddp
	@reason="$$($(BIN)/python -m ddp_bench.wan capability)"; \
	if [ -n "$$reason" ]; then echo "skipped: $$reason"; exit 0; fi; \
	set -e; \
	$(BIN)/hippo wan check --quick || echo "the emulator is outside of its limits: this machine is busy"; \
	$(BIN)/hippo wan study --config experiments/configs/wan/quick.yaml --out $(WAN); \
	$(BIN)/hippo report $(WAN)

# Launch files of `hippo plan --export`, read by the frameworks' own parsers, which stand apart: they and
# the rest do not share all versions.
PARSERS := $(VENV)/frameworks
$(PARSERS)/ready: Makefile constraints-cpu.txt
	$(PYTHON) -m venv $(PARSERS)
	$(PARSERS)/bin/pip install --no-compile --quiet --disable-pip-version-check $(CONSTRAINTS) \
		torchtitan==0.3.0 torchft==0.2.0 triton megatron-core==0.16.1 deepspeed==0.19.8
	touch $@

frameworks: $(VENV)/core $(PARSERS)/ready
	FRAMEWORKS_PYTHON=$(CURDIR)/$(PARSERS)/bin/python $(BIN)/pytest -rs tests/experiments/plan/test_export.py

bench: $(VENV)/core
	$(BIN)/hippo bench --what env
	$(BIN)/hippo bench --what plans
	$(BIN)/hippo bench --what plans --fidelity event
	$(BIN)/hippo bench --what train

$(VENV)/notebooks: pyproject.toml constraints-cpu.txt $(VENV)/core
	$(BIN)/pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e ".[notebooks]"
	touch $@

# Executed copies of notebooks/*.py, for Jupyter and as pages.
notebooks: $(VENV)/core $(VENV)/notebooks
	mkdir -p outputs/notebooks
	for file in notebooks/*.py; do \
		copy=outputs/notebooks/$$(basename $$file .py).ipynb; \
		$(BIN)/jupytext --quiet --to ipynb --execute --run-path . --output $$copy $$file || exit 1; \
		$(BIN)/jupyter-nbconvert --log-level WARN --to html $$copy || exit 1; \
	done

lint: $(VENV)/core
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/basedpyright --pythonpath $(BIN)/python

clean:
	rm -rf $(VENV) .cache build *.egg-info

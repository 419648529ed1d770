# Two commands on a fresh machine: `make demo` (the whole job on a small corpus) and `make test`.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
CORPUS ?= embedded
NAME ?= $(if $(filter embedded,$(CORPUS)),demo,demo-$(basename $(notdir $(CORPUS))))
EVAL_DATA ?= $(CLEAR_DATA)
BIN = $(VENV)/bin
export PATH := $(abspath $(BIN)):$(PATH)
INSTALLED = $(VENV)/.installed

.PHONY: demo test test-full test-slow test-slurm test-fake-cuda fuzz sanitize gpu-accept gpu-bundle lint docs install clean

install: $(INSTALLED)

# torch first: DeepSpeed's build reads it, as ours reads nanobind. Pinned by constraints.txt; CUDA builds come with torch where the
# platform has them. setuptools would warn of every editable installation.
$(INSTALLED): setup.py pyproject.toml constraints.txt $(wildcard augment/native/* pretrain/model/kernels/native/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip setuptools wheel -c constraints.txt
	$(BIN)/pip install --quiet "$(TORCH)" numpy nanobind -c constraints.txt
	DS_BUILD_OPS=0 $(BIN)/pip install --quiet --no-build-isolation deepspeed -c constraints.txt
	PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --no-build-isolation -e ".[dev]" -c constraints.txt
	touch $@

# From raw text to an evaluated, exported encoder. What was interrupted continues. DeepSpeed's own port may be taken.
FREE_PORT = $$(python -c "from pretrain.common.processes import free_port; print(free_port())")
demo: $(INSTALLED)
	clearly prepare --config configs/demo.yaml --source "$(CORPUS)" --out "data/$(NAME)"
	deepspeed --log_level error --master_port $(FREE_PORT) pretrain/main.py --config configs/demo.yaml \
	  --data "data/$(NAME)" --run "runs/$(NAME)" --resume auto $(if $(EVAL_DATA),--eval-data "$(EVAL_DATA)")
	$(if $(EVAL_DATA),clearly sts "runs/$(NAME)" --eval-data "$(EVAL_DATA)")
	clearly show "runs/$(NAME)" --out "runs/$(NAME)/report/page.html"
	@echo "encoder: runs/$(NAME)/export, for transformers and sentence-transformers"
	@echo "curves:  tensorboard --logdir runs/$(NAME)/tensorboard"

# One process a core; a test file stays in one, with its fixtures.
test: $(INSTALLED)
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile

# Those, and the tests that start processes: runs, preparations, sweeps.
test-full: $(INSTALLED)
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile -m "not slow and not slurm and not gpu"

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow

test-slurm: $(INSTALLED)
	$(BIN)/python -m pytest -m slurm

# What a machine without a GPU can say of one, by torch's CUDA build (5 GB, an environment of its own): which branch tensors on
# "cuda" take; the Triton programs, by its interpreter, and compiled for sm_90. "===": not a CPU build's 2.13.0+cpu.
test-fake-cuda:
	$(MAKE) install VENV=.venv-cuda TORCH="torch===2.13.0"
	.venv-cuda/bin/python -m pytest tests/pretrain/model

# Cases of one of the targets in tests/fuzz/fuzz_targets.py; what breaks a contract is kept in tests/fuzz/seeds.
fuzz: $(INSTALLED)
	$(BIN)/python tests/fuzz/run_fuzz.py $(TARGET) --cases $(or $(CASES),1000000)

# The compiled parts with AddressSanitizer and UndefinedBehaviorSanitizer, in build/sanitize: their tests and fuzz targets.
sanitize: $(INSTALLED)
	$(BIN)/python tests/fuzz/sanitize.py

# On a machine with a GPU: at most 4 minutes after its imports, a line as each part ends; fails if a part does, or had no time.
gpu-accept: $(INSTALLED)
	$(BIN)/python tests/benchmarks/gpu_accept.py

# The same for a GPU machine without a network: carry .gpu there, and run `bash .gpu/run.sh`.
gpu-bundle: $(INSTALLED)
	$(BIN)/python tests/benchmarks/gpu_bundle.py

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The pages of docs/ as a site: build/site/index.html. Any warning is an error. The variable turns off the theme's advice to move.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file docs/site/mkdocs.yml

# Not runs/ and data/: they may be months of work.
clean:
	rm -rf $(VENV) build *.egg-info

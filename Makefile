# Everything a newcomer, a developer or a machine that checks needs. `make` alone lists it.

CARGO ?= cargo
PYTHON ?= python3
MODELS ?= models
# What `make bench` and `make demo` take over from the command line, as in
#   make demo PROMPT='Why is the sky blue?'
PROMPT ?=
BENCH_FLAGS ?=

DEFAULT_MODEL := $(MODELS)/SmolLM2-135M-Instruct.Q4_1.gguf

.DEFAULT_GOAL := help
.PHONY: help tools demo test lint soak bench bench-quick bench-serving bench-hive build models

help: ## This list
	@echo 'make TARGET, where TARGET is one of:'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

tools:
	@command -v $(CARGO) >/dev/null || { echo "make: cargo is missing; install Rust from https://rustup.rs" >&2; exit 1; }
	@command -v $(PYTHON) >/dev/null || { echo "make: python3 is missing (Debian: apt install python3 python3-pip)" >&2; exit 1; }

demo: tools ## Fetch the default model, ask one node, then a hive of four that loses a node amid its answer
	@scripts/fetch-models.sh $(MODELS)
	$(CARGO) build --release --package node
	@$(PYTHON) scripts/demo.py --binary target/release/cadencia --model $(DEFAULT_MODEL) $(if $(PROMPT),--prompt '$(subst ','\'',$(PROMPT))')

test: tools ## Everything that must hold before a change is done: format, lints, all tests
	@MODELS=$(MODELS) CARGO=$(CARGO) scripts/test.sh

lint: tools ## Format and lints only
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

soak: tools ## The long form of every test: 10^8 kernel rows, adversarial maxima, all windows (hours)
	CADENCIA_SOAK=1 $(CARGO) test --release --workspace -- --nocapture

bench: tools build ## Speed against llama.cpp on the same files and threads; prints a table (30 min)
	$(PYTHON) benches/versus-llama-cpp.py $(BENCH_FLAGS)

bench-quick: tools build ## The same on the default model alone, few rounds
	$(PYTHON) benches/versus-llama-cpp.py --only SmolLM2 --rounds 3 $(BENCH_FLAGS)

bench-serving: tools build ## Many users: against one, against llama-server, prefixes, guessing, load (30 min)
	$(PYTHON) benches/serving.py --model $(DEFAULT_MODEL) $(BENCH_FLAGS)

bench-hive: tools build ## A split model: against one node, by stages and by delay (10 min)
	$(PYTHON) benches/hive.py --model $(DEFAULT_MODEL) $(BENCH_FLAGS)

build: tools ## The node, in release
	$(CARGO) build --release --package node

models: tools ## Fetch all models that tests and benches use
	@scripts/fetch-models.sh $(MODELS) all

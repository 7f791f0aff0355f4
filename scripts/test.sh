#!/usr/bin/env bash
# What `make test` runs: format, lints, every test, the examples in the documentation and, with real
# clients, those of README.md.
#
# The quality gates need two real models. They are fetched once; when that is not possible (no
# network), those tests skip with a printed line and this script says so. When they are there,
# CADENCIA_MODELS_REQUIRED makes a skip a failure, so that a gate cannot be lost unseen.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
models=${MODELS:-models}

step() { printf '\n== %s\n' "$*"; }

step "models for the quality gates"
if scripts/fetch-models.sh "$models" all; then
  CADENCIA_MODELS=$(cd "$models" && pwd)
  export CADENCIA_MODELS CADENCIA_MODELS_REQUIRED=1
else
  echo "test: the real models are not here, so the gates on real models are NOT tested" >&2
fi

step "format"
"$cargo" fmt --all --check

step "lints"
"$cargo" clippy --workspace --all-targets -- -D warnings

if "$cargo" nextest --version >/dev/null 2>&1; then
  step "tests (nextest)"
  "$cargo" nextest run --workspace
  step "examples in the documentation"
  "$cargo" test --workspace --doc --quiet
else
  step "tests (cargo test; cargo-nextest would run them side by side)"
  "$cargo" test --workspace
fi

# The openai package goes into a folder of its own: the machine's Python stays as it is.
if [ -n "${CADENCIA_MODELS_REQUIRED:-}" ]; then
  step "examples of README.md, with curl and the openai package"
  target=${CARGO_TARGET_DIR:-target}
  # The tests above have built the program; building it alone would choose other features.
  [ -x "$target/debug/cadencia" ] || "$cargo" build --package node
  packages=$target/clients-packages
  python3 -c 'import sys; sys.path.insert(0, sys.argv[1]); import openai' "$packages" 2>/dev/null ||
    python3 -m pip install --quiet --disable-pip-version-check --no-warn-conflicts \
      --root-user-action ignore --target "$packages" 'openai>=3.57,<4'
  PYTHONPATH=$packages${PYTHONPATH:+:$PYTHONPATH} python3 scripts/clients.py \
    --binary "$target/debug/cadencia" --model "$CADENCIA_MODELS/SmolLM2-135M-Instruct.Q4_1.gguf"
fi

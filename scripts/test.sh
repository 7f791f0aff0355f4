#!/usr/bin/env bash
# What `make test` runs: format, lints, every test, the examples in the documentation.
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

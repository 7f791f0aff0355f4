#!/usr/bin/env python3
"""Speed beside llama.cpp: the same files, the same thread counts, in turn, on this machine.

    benches/versus-llama-cpp.py [--only TEXT] [--rounds N] [--readme] [--under 'chrt -f 10']

For each file and thread count, rounds of (cadencia, llama.cpp) and (llama.cpp, cadencia)
alternate, each measurement in a process of its own. A round gives one ratio for prefill and one
for decode; the table has their median and range. What the machine does besides is watched: a
round during which other work took the processor is thrown away and repeated, because a spinning
barrier suffers far more from a neighbour than its fair share, and the ratio would mean nothing.

Decode: tokens one by one, from a cache that is empty or holds one token, logits of each. Prefill:
one prompt, logits of its last token. Read bandwidth is measured by `cadencia bench` in the same
process with the same threads; "of bandwidth" is weight bytes per token x tokens per second / that
bandwidth.

llama.cpp comes as llama-cpp-python, built here for this processor, in a virtual environment under
target/ (the first time takes some minutes). Nothing outside target/ is written, unless --readme.
"""

import argparse
import json
import os
import pathlib
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import time
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
LLAMA_CPP = "llama-cpp-python==0.3.36"
MARKS = ("<!-- figures -->", "<!-- /figures -->")

# Cores that other work may take during a measurement before the round is thrown away.
OTHERS_MAX = 0.08
# Rounds thrown away in a row before giving up on a quiet machine.
RETRIES_MAX = 12
MEASUREMENT_MAX_S = 600


class File:
    """A model to measure, and the ratios that the project has promised for it."""

    def __init__(self, title, path, decode_goal, prefill_goal, make=None):
        self.title = title
        self.path = path
        self.goal = {"decode": decode_goal, "prefill": prefill_goal}
        self.make = make


def files(models):
    def generated(kind):
        return ["cargo", "run", "--release", "--quiet", "--package", "compute",
                "--example", "make-model", "--", "--type", kind, "--out"]

    made = TARGET / "bench-models"
    return [
        File("SmolLM2-135M Q4_1", models / "SmolLM2-135M-Instruct.Q4_1.gguf", 1.3, 1.2),
        File("Gemma-3-270M Q4_K_M", models / "gemma-3-270m-q4_k_m.gguf", 1.1, 1.0),
        File("llama 1B shape Q4_K", made / "llama-1b-Q4_K.gguf", 1.0, 1.0, generated("Q4_K")),
        File("llama 1B shape Q4_0", made / "llama-1b-Q4_0.gguf", 1.0, 1.0, generated("Q4_0")),
    ]


def obtain(file, models):
    """Makes sure that the file is there: generated, or fetched."""
    if file.path.is_file():
        return
    if file.make:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        part = file.path.with_suffix(".part")
        note(f"generating {file.path.name}")
        subprocess.run([*file.make, str(part)], cwd=ROOT, check=True)
        part.rename(file.path)
    else:
        subprocess.run([ROOT / "scripts/fetch-models.sh", models, "all"], check=True)


def note(text):
    print(text, file=sys.stderr, flush=True)


def python_with_llama_cpp():
    """The interpreter that has llama.cpp: this one, or that of an environment under target/."""
    wanted = f"import llama_cpp, sys; sys.exit(llama_cpp.__version__ != {LLAMA_CPP[18:]!r})"

    def has(python):
        probe = subprocess.run([python, "-c", wanted], stderr=subprocess.DEVNULL, check=False)
        return probe.returncode == 0

    home = TARGET / "llama-cpp"
    python = home / "bin" / "python3"
    for candidate in (sys.executable, str(python)):
        if os.path.exists(candidate) and has(candidate):
            return candidate
    note(f"building {LLAMA_CPP} for this processor (some minutes, once)")
    if not (shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")):
        sys.exit("llama.cpp needs a C++ compiler (Debian: apt install build-essential)")
    try:
        venv.create(home, clear=True, with_pip=True)
    except subprocess.CalledProcessError:
        sys.exit("python3 cannot make virtual environments (Debian: apt install python3-venv)")
    build = dict(os.environ, CMAKE_ARGS="-DGGML_NATIVE=ON")
    install = [python, "-m", "pip", "install", "--quiet", "--no-binary", "llama-cpp-python", LLAMA_CPP]
    subprocess.run(install, env=build, check=True)
    return str(python)


def busy_seconds():
    """Seconds that all cores have worked since boot, for anyone; steal by the host included."""
    with open("/proc/stat", encoding="ascii") as stat:
        # user nice system idle iowait irq softirq steal
        ticks = [int(n) for n in stat.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def run(command, under):
    """Runs one measurement; returns its JSON object with `others`: cores that other work took."""
    command = [*under, *map(str, command)]
    watched = os.path.exists("/proc/stat")
    before = busy_seconds() if watched else 0
    times, started = os.times(), time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=MEASUREMENT_MAX_S, check=False)
    wall = time.monotonic() - started
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)} ended with {done.returncode}")
    result = json.loads(done.stdout)
    now = os.times()
    own = sum(now[:4]) - sum(times[:4])
    busy = busy_seconds() - before if watched else own
    result["others"] = max(0.0, (busy - own) / wall)
    return result


def measure_case(file, threads, options, python):
    """Rounds for one file and thread count; returns the list of rounds."""
    # Of two repetitions each side tells the better one, so that neither pays for its first steps.
    shape = ["-p", options.prompt, "-n", options.tokens, "-t", threads, "-r", 2]
    ours = [options.binary, "bench", "--model", file.path, *shape, "--json"]
    theirs = [python, ROOT / "benches/llama_cpp_side.py", "--model", file.path, *shape]
    rounds, thrown = [], 0
    while len(rounds) < options.rounds:
        # The order turns each round, so that neither side always finds the caches of the other.
        pair = {"cadencia": ours, "llama.cpp": theirs}
        order = list(pair) if len(rounds) % 2 == 0 else list(reversed(pair))
        result = {who: run(pair[who], options.under) for who in order}
        others = max(side["others"] for side in result.values())
        if others > OTHERS_MAX and not options.accept_noise:
            thrown += 1
            if thrown > RETRIES_MAX:
                sys.exit(f"other work keeps taking {others:.2f} cores; stop it, or --accept-noise")
            note(f"  other work took {others:.2f} cores; round thrown away")
            continue
        thrown = 0
        rounds.append(result)
        note(f"  {file.title}, {threads} thread{'s' if threads > 1 else ''}, "
             f"round {len(rounds)} of {options.rounds}: "
             + ", ".join(f"{what} {ratio(result, what):.2f}x" for what in ("prefill", "decode")))
    return rounds


def ratio(one_round, what):
    return one_round["cadencia"][f"{what}_tps"] / one_round["llama.cpp"][f"{what}_tps"]


def summarise(file, threads, rounds):
    """The row of one case: medians, ratios with their range, share of bandwidth."""
    def median(side, key):
        return statistics.median(r[side][key] for r in rounds)

    bandwidth = median("cadencia", "read_bandwidth_bytes_s")
    per_token = rounds[0]["cadencia"]["bytes_per_token"]
    row = {
        "file": file.title,
        "threads": threads,
        "rounds": len(rounds),
        "bytes_per_token": per_token,
        "read_bandwidth_bytes_s": bandwidth,
        "others_cores_max": max(side["others"] for r in rounds for side in r.values()),
    }
    for what in ("prefill", "decode"):
        ratios = sorted(ratio(r, what) for r in rounds)
        row[what] = {
            "cadencia_tps": median("cadencia", f"{what}_tps"),
            "llama_cpp_tps": median("llama.cpp", f"{what}_tps"),
            "ratio": statistics.median(ratios),
            "ratio_min": ratios[0],
            "ratio_max": ratios[-1],
            "goal": file.goal[what],
        }
    for side, key in (("cadencia", "cadencia"), ("llama.cpp", "llama_cpp")):
        row["decode"][f"{key}_of_bandwidth"] = statistics.median(
            r[side]["decode_tps"] * per_token / r["cadencia"]["read_bandwidth_bytes_s"]
            for r in rounds)
        row[f"{key}_load_ms"] = median(side, "load_ms")
        row[f"{key}_peak_rss_bytes"] = median(side, "peak_rss_bytes")
    return row


def machine():
    """One line on what measured."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            name = next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{name}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"


def table(rows, options):
    """The Markdown that goes into the README."""
    lines = [
        f"Measured by `benches/versus-llama-cpp.py` on {machine()}, {time.strftime('%Y-%m-%d')}, "
        f"against {LLAMA_CPP} built natively: {options.rounds} rounds in turn, medians; in brackets "
        f"the range of the ratio. Prefill of {options.prompt} tokens, decode of {options.tokens}.",
        "",
        "| file | threads | decode tok/s (llama.cpp) | ratio | prefill tok/s (llama.cpp) | ratio "
        "| read bandwidth | of it in decode (llama.cpp) | peak RSS (llama.cpp) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row["file"], str(row["threads"])]
        for what in ("decode", "prefill"):
            part = row[what]
            cells.append(f"{part['cadencia_tps']:.1f} ({part['llama_cpp_tps']:.1f})")
            cells.append(f"**{part['ratio']:.2f}** [{part['ratio_min']:.2f}, {part['ratio_max']:.2f}]")
        cells.append(f"{row['read_bandwidth_bytes_s'] / 1e9:.1f} GB/s")
        decode = row["decode"]
        cells.append(f"{decode['cadencia_of_bandwidth']:.0%} ({decode['llama_cpp_of_bandwidth']:.0%})")
        cells.append(f"{row['cadencia_peak_rss_bytes'] / 1e6:.0f} MB "
                     f"({row['llama_cpp_peak_rss_bytes'] / 1e6:.0f})")
        lines.append("| " + " | ".join(cells) + " |")
    if options.accept_noise:
        worst = max(row["others_cores_max"] for row in rows)
        lines += ["", f"Other work took up to {worst:.2f} cores meanwhile: read these as rough."]
    return "\n".join(lines)


def goals(rows):
    """A line for each ratio that falls short of what the project promises."""
    return [
        f"{row['file']}, {row['threads']} threads: {what} {row[what]['ratio']:.2f}x, "
        f"promised {row[what]['goal']:.1f}x"
        for row in rows
        for what in ("decode", "prefill")
        if row[what]["ratio"] < row[what]["goal"]
    ]


def write_readme(text):
    """Puts the table between the marks in README.md."""
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text(encoding="utf-8").partition(MARKS[0])
    _, found, after = rest.partition(MARKS[1])
    if not found:
        sys.exit(f"README.md lacks the marks {MARKS[0]} and {MARKS[1]}")
    readme.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{after}", encoding="utf-8")


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="files whose title contains TEXT")
    parser.add_argument("--threads", default="1,2", help="thread counts, comma-separated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-p", "--prompt", type=int, default=512, help="tokens to prefill")
    parser.add_argument("-n", "--tokens", type=int, default=128, help="tokens to decode")
    parser.add_argument("--models", type=pathlib.Path,
                        default=pathlib.Path(os.environ.get("CADENCIA_MODELS", ROOT / "models")))
    parser.add_argument("--binary", type=pathlib.Path, default=TARGET / "release" / "cadencia")
    parser.add_argument("--under", type=shlex.split, default=[], metavar="COMMAND",
                        help="run both sides under it, such as 'taskset -c 0,1'")
    parser.add_argument("--accept-noise", action="store_true",
                        help="keep rounds that other work disturbed, and say so")
    parser.add_argument("--out", type=pathlib.Path, default=TARGET / "bench" / "versus-llama-cpp.json")
    parser.add_argument("--readme", action="store_true", help="also put the table into README.md")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a promise is not kept")
    return parser.parse_args()


def main():
    options = parse()
    if not options.binary.is_file():
        sys.exit(f"{options.binary} is missing; make it with: cargo build --release")
    chosen = [file for file in files(options.models) if options.only.lower() in file.title.lower()]
    if not chosen:
        sys.exit(f"no file's title contains {options.only!r}")
    python = python_with_llama_cpp()
    rows, raw = [], []
    for file in chosen:
        obtain(file, options.models)
        for threads in map(int, options.threads.split(",")):
            rounds = measure_case(file, threads, options, python)
            rows.append(summarise(file, threads, rounds))
            raw.append({"file": file.title, "threads": threads, "rounds": rounds})
    options.out.parent.mkdir(parents=True, exist_ok=True)
    result = {"machine": machine(), "llama_cpp": LLAMA_CPP, "rows": rows, "raw": raw}
    options.out.write_text(json.dumps(result, indent=1), encoding="utf-8")
    text = table(rows, options)
    print(text)
    if options.readme:
        write_readme(text)
    short = goals(rows)
    for line in short:
        note(f"short of the promise: {line}")
    note(f"all figures: {options.out}")
    sys.exit(1 if short and options.check else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""One measurement of llama.cpp: loads a model, times prefill and decode, prints one JSON object.

versus-llama-cpp.py starts this once for each measurement, in a process of its own, exactly as it
starts `cadencia bench`, so that neither side inherits the other's threads, heap or warm caches.

Only `llama_decode` and the `llama_synchronize` that waits for it are timed. Prefill is one batch
that asks for the logits of its last token; a decode step is one token with its logits. Both begin
with an empty KV cache, as llama-bench does. Everything else stands at llama.cpp's own defaults:
F16 KV cache, flash attention by its own choice, weights repacked where it has a kernel for that.
Of several repetitions the best is told, as `cadencia bench` does.
"""

import argparse
import ctypes
import json
import os
import resource
import sys
import time

import llama_cpp.llama_cpp as llama

BATCH = 512


def silence():
    """Keeps llama.cpp's log off stderr; the callback must outlive every call."""
    callback = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(callback, ctypes.c_void_p(0))
    return callback


def load(path, threads, context_len):
    """Returns (model, context, milliseconds) or stops with a line that names the file."""
    started = time.perf_counter()
    model_params = llama.llama_model_default_params()
    model_params.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(path.encode(), model_params)
    if not model:
        sys.exit(f"llama.cpp cannot load {path}")
    params = llama.llama_context_default_params()
    params.n_ctx = context_len
    params.n_batch = params.n_ubatch = BATCH
    params.n_threads = params.n_threads_batch = threads
    context = llama.llama_init_from_model(model, params)
    if not context:
        sys.exit(f"llama.cpp cannot make a context of {context_len} tokens for {path}")
    return model, context, (time.perf_counter() - started) * 1e3


def tokens_for(model, count):
    """The same ids in every run; any ids will do, since time does not depend on them."""
    vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    return [(i * 7919 + 13) % vocabulary for i in range(count)]


def clear(context):
    llama.llama_memory_clear(llama.llama_get_memory(context), True)


def decode(context, tokens, position):
    """Runs `tokens` from `position`; logits of the last only. Returns seconds."""
    batch = llama.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i] = token
        batch.pos[i] = position + i
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = 0
        batch.logits[i] = i + 1 == len(tokens)
    started = time.perf_counter()
    code = llama.llama_decode(context, batch)
    llama.llama_synchronize(context)
    seconds = time.perf_counter() - started
    llama.llama_batch_free(batch)
    if code != 0:
        sys.exit(f"llama_decode answered {code} at position {position}")
    return seconds


def busy_threads(before):
    """How many of this process's threads have used the processor since `before`."""
    now = thread_ticks()
    return sum(1 for thread, ticks in now.items() if ticks > before.get(thread, 0) + 1)


def thread_ticks():
    """Processor time of each thread so far, in clock ticks; empty where there is no /proc."""
    ticks = {}
    if not os.path.isdir("/proc/self/task"):
        return ticks
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        ticks[thread] = int(fields[11]) + int(fields[12])
    return ticks


def measure(arguments):
    log = silence()
    context_len = max(arguments.prompt, arguments.generate) + 64
    model, context, load_ms = load(arguments.model, arguments.threads, context_len)
    tokens = tokens_for(model, max(arguments.prompt, arguments.generate))

    # A first pass of each kind faults the weights in and wakes the threads.
    for position in range(4):
        decode(context, tokens[position : position + 1], position)
    clear(context)
    decode(context, tokens[: min(32, arguments.prompt)], 0)

    ticks, cpu, wall = thread_ticks(), time.process_time(), time.perf_counter()
    prefill_s, decode_s = [], []
    for _ in range(arguments.repetitions):
        clear(context)
        prefill_s.append(sum(
            decode(context, tokens[first : min(first + BATCH, arguments.prompt)], first)
            for first in range(0, arguments.prompt, BATCH)
        ))
        clear(context)
        decode_s.append(sum(
            decode(context, tokens[position : position + 1], position)
            for position in range(arguments.generate)
        ))
    busy = busy_threads(ticks)
    used = (time.process_time() - cpu) / (time.perf_counter() - wall)
    if busy > arguments.threads or used > arguments.threads + 0.1:
        sys.exit(f"llama.cpp ran {busy} threads ({used:.2f} cores), not {arguments.threads}")

    del log
    return {
        "prefill_tps": arguments.prompt / min(prefill_s),
        "decode_tps": arguments.generate / min(decode_s),
        "load_ms": load_ms,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "busy_threads": busy,
        "cores_used": used,
        "system": llama.llama_print_system_info().decode().strip(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("-p", "--prompt", type=int, default=512, help="tokens to prefill")
    parser.add_argument("-n", "--generate", type=int, default=128, help="tokens to decode")
    parser.add_argument("-t", "--threads", type=int, required=True)
    parser.add_argument("-r", "--repetitions", type=int, default=1, help="the best is told")
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()

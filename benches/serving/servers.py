"""Servers that are measured: nodes of this project and llama-server; and what they use."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import venv

from .client import Trouble, fetch

READY_WITHIN_S = 120
STOP_WITHIN_S = 30
LOG_LINES_MAX = 60


class Server:
    """A process that answers on a port of this machine; stopped however the block ends."""

    def __init__(self, command, under, environment):
        self.home = tempfile.TemporaryDirectory(prefix="cadencia-serving-")
        for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
            environment[name] = self.home.name
        self.log, self.address, self.listens = [], None, threading.Event()
        self.process = subprocess.Popen(
            [*under, *map(str, command)], env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            start_new_session=True)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.log = (self.log + [line.rstrip()])[-LOG_LINES_MAX:]
            found = re.search(r"listening on http://([^/\s:]+):(\d+)", line)
            if found and self.address is None:
                self.address = found[1], int(found[2])
                self.listens.set()
        self.listens.set()

    def __enter__(self):
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.reader.join(STOP_WITHIN_S)
        self.home.cleanup()

    def wait_ready(self):
        deadline = time.monotonic() + READY_WITHIN_S
        self.listens.wait(READY_WITHIN_S)
        while self.address and time.monotonic() < deadline and self.process.poll() is None:
            try:
                if fetch(self.address, self.ready_path).status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        said = "\n".join("  " + line for line in self.log)
        raise Trouble(f"{self.title} did not come up; it said:\n{said}")

    def rss(self):
        """Resident bytes now; 0 where there is no /proc."""
        try:
            status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        except OSError:
            return 0
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(found[1]) * 1024 if found else 0

    def cpu_s(self):
        """Seconds of processor time it has used; 0 where there is no /proc."""
        try:
            stat = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8")
        except OSError:
            return 0.0
        fields = stat.rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Node(Server):
    """`cadencia up`."""

    title = "cadencia"
    ready_path = "/ready"

    def __init__(self, options, *flags):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("CADENCIA_")}
        command = [options.binary, "up", "--model", options.model, "--threads", options.threads,
                   "--api", "127.0.0.1:0", *options.flags, *flags]
        super().__init__(command, options.under, environment)

    def metrics(self):
        """Sums of its metrics by name, without labels; empty where the build has no such route."""
        answer = fetch(self.address, "/metrics")
        if answer.status != 200:
            return {}
        sums = {}
        for line in answer.body.decode().splitlines():
            found = re.fullmatch(r"(\w+)(?:\{.*\})? ([-+.\deE]+)", line)
            if found:
                sums[found[1]] = sums.get(found[1], 0.0) + float(found[2])
        return sums


class LlamaServer(Server):
    """llama.cpp's own server."""

    title = "llama-server"
    ready_path = "/health"

    def __init__(self, options, binary, slots):
        command = [binary, "-m", options.model, "-np", slots, "-t", options.threads,
                   "-c", 8192, "--host", "127.0.0.1", "--port", free_port()]
        super().__init__(command, options.under, dict(os.environ))

    def metrics(self):
        return {}


def free_port():
    import socket
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def llama_server(target, package):
    """llama-server built for this processor from the sources inside `package`, under `target`."""
    home = target / "llama-server"
    binary = home / "build" / "bin" / "llama-server"
    if binary.is_file():
        return binary
    print(f"building llama-server of {package} for this processor (many minutes, once)",
          file=sys.stderr, flush=True)
    if not (shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")):
        raise Trouble("llama.cpp needs a C++ compiler (Debian: apt install build-essential)")
    shutil.rmtree(home, ignore_errors=True)
    venv.create(home / "venv", with_pip=True)
    pip = [home / "venv" / "bin" / "python3", "-m", "pip", "--quiet"]
    subprocess.run([*pip, "install", "cmake"], check=True)
    name = package.partition("==")[0]
    subprocess.run([*pip, "download", "--no-deps", "--no-binary", name, "--dest", home, package],
                   check=True)
    archive = next(home.glob("*.tar.gz"))
    shutil.unpack_archive(archive, home, filter="data")
    archive.unlink()
    source = next(home.glob("*/vendor/llama.cpp"))
    cmake = home / "venv" / "bin" / "cmake"
    off = ["BUILD_SHARED_LIBS", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_APP",
           "LLAMA_BUILD_UI", "LLAMA_USE_PREBUILT_UI", "LLAMA_OPENSSL"]
    subprocess.run([cmake, "-S", source, "-B", home / "build", "-DCMAKE_BUILD_TYPE=Release",
                    "-DGGML_NATIVE=ON", *(f"-D{name}=OFF" for name in off)], check=True)
    subprocess.run([cmake, "--build", home / "build", "--target", "llama-server",
                    "-j", str(os.cpu_count())], check=True)
    return binary

"""A node that a script runs: the surroundings it gets, and its end."""

import os
import subprocess


def surroundings(home):
    """This process's environment without settings of cadencia's, with `home` for its folders."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CADENCIA_")}
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        environment[name] = home
    return environment


def stop(process, within_s):
    """Asks `process` to stop, and kills it where it does not within `within_s` seconds."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def children(parent):
    """Ids of the processes that `parent` started."""
    if os.path.isdir("/proc/self"):
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:
                    # The program's name, in brackets, may hold anything.
                    if int(stat.read().rpartition(")")[2].split()[1]) == parent:
                        found.append(int(name))
            except OSError:
                # It has ended meanwhile.
                continue
        return found
    listed = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=True)
    pairs = (line.split() for line in listed.stdout.splitlines())
    return [int(pid) for pid, of in pairs if int(of) == parent]

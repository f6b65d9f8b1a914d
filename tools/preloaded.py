"""pytest for `tools.mutate`, in forks of a process that has loaded the large libraries: starting takes 9 s without it.

Each line of standard input is a JSON list: a folder, a file for the output, pytest's arguments, and the ids of the
tests to run, in order, or null for all. Each is answered by pytest's exit code.
"""

import json
import os
import sys

import datasets  # noqa: F401
import matplotlib.figure  # noqa: F401
import pytest
import scipy.stats  # noqa: F401
import torch  # noqa: F401
import transformers  # noqa: F401
import tyro  # noqa: F401
from transformers import AutoModelForCausalLM, LlamaForCausalLM, Qwen3ForCausalLM  # noqa: F401


class Selected:
    """A plugin that runs some tests only."""

    def __init__(self, ids: list[str]) -> None:
        self.ids = ids

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        found = {item.nodeid: item for item in items}
        items[:] = [found[name] for name in self.ids if name in found]


def run(folder: str, output: str, words: list[str], ids: list[str] | None) -> int:
    """The exit code of pytest in a folder."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.chdir(folder)
    sys.path[0] = folder
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os._exit(pytest.main(words, plugins=[] if ids is None else [Selected(ids)]))


for line in sys.stdin:
    sys.stdout.write(f"{run(*json.loads(line))}\n")
    sys.stdout.flush()

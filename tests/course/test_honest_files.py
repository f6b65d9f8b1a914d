"""Honest files pass: their imports, their encodings, and that nothing of them reaches the next submission."""

from notebooks.exercises.exercises import BY_NAME, SCRIPTS, functions
from notebooks.exercises.files import Unusable, read, sources
from notebooks.exercises.grade import grade_function
from notebooks.exercises.runner import IMPORTABLE, run_files
from notebooks.exercises.sandbox import Sandbox

import pytest
from solutions import HEAD, solve

NAME = "dr_grpo.compute_advantages"


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox() as made:
        yield made


HONEST = {
    "another file's function": "from grpo import compute_advantages as z\n",
    "another file as a module": "import grpo\nz = grpo.compute_advantages\n",
    "a byte-order mark": "\ufeffz = None\n",
    "statistics": "import statistics\nz = statistics.fmean\n",
    "the standard library": "".join(f"import {name}\n" for name in IMPORTABLE) + "z = None\n",
    "NumPy": "import numpy as np\nz = np.mean\n",
    "torch's parts": "from torch.nn import functional\nfrom torch.func import grad, vmap\nz = functional.softmax\n",
    "a dataclass and printing": "import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int = 1\n"
    "print(A(), flush=True)\nz = None\n",
    "a warning": "import warnings\nwarnings.warn('careful')\nz = None\n",
    "Windows line ends": "z = None\r\n",
}
RIGHT = "def compute_advantages(rewards: Tensor) -> Tensor:\n    return rewards - rewards.mean(1, keepdim=True)\n"


@pytest.mark.parametrize("form", HONEST)
def test_honest_files_pass(form, sandbox, tmp_path):
    text = HONEST[form]
    text = "\ufeff" + HEAD + text[1:] if text.startswith("\ufeff") else HEAD + text
    (tmp_path / "dr_grpo.py").write_bytes((text + RIGHT).encode())
    solve(tmp_path, ["grpo"])
    mark = grade_function(BY_NAME[NAME], tmp_path, sandbox, 3)
    assert (mark.points, mark.reason) == (1, "")


def test_a_file_may_use_another_files_function(sandbox, tmp_path):
    """A file can import a function from another; without that file, the reason explains the import."""
    solve(tmp_path, ["grpo", "dr_grpo"])
    (tmp_path / "maxrl.py").write_text("from dr_grpo import compute_advantages\n")
    assert "this is Dr. GRPO's" in grade_function(BY_NAME["maxrl.compute_advantages"], tmp_path, sandbox, 3).reason
    (tmp_path / "dapo.py").write_text(HEAD + "import grpo\n" + functions("dapo")["token_weights"])
    assert grade_function(BY_NAME["dapo.token_weights"], tmp_path, sandbox, 3).points == 1
    (tmp_path / "grpo.py").unlink()
    mark = grade_function(BY_NAME["dapo.token_weights"], tmp_path, sandbox, 3)
    assert mark.points == 0 and mark.reason.startswith(
        "the file imports grpo: only your own files and abc, collections,"
    )


@pytest.mark.parametrize("name", ["scipy", "common.batch", "notebooks.exercises.answers", "transformers"])
def test_what_cannot_be_imported_is_named(name, sandbox):
    (result,) = sandbox.run({"rloo": f"import {name}\n"}, "rloo", "compute_advantages", [])
    assert result["problem"].startswith(f"the file imports {name.split('.')[0]}: only your own files and")


def test_files_from_memory_leave_nothing_behind():
    """Unconfined, as on other systems, files give the same results and the next submission starts fresh."""
    files = {
        "one": "from two import x\ndef compute_advantages(rewards):\n    return rewards * x\n",
    }
    case = {"inputs": [{"float64": [[1.0]]}]}
    for x in (2.0, 3.0):
        (result,) = run_files(files | {"two": f"x = {x}\n"}, "one", "compute_advantages", [case])
        assert result["outputs"][0]["values"] == [x]
    (result,) = run_files(files, "one", "compute_advantages", [case])
    assert "imports two" in result["problem"]


def test_only_readable_files_are_sent(tmp_path):
    (tmp_path / "grpo.py").write_text("\ufeffx = 1\n", encoding="utf-8")
    (tmp_path / "ppo.py").write_bytes(b"\xff")
    (tmp_path / "utils.py").write_text("x = 2\n")
    assert sources(tmp_path, SCRIPTS, "grpo") == {"grpo": "x = 1\n"}
    with pytest.raises(Unusable, match="UTF-8"):
        sources(tmp_path, SCRIPTS, "ppo")
    with pytest.raises(Unusable, match="missing"):
        read(tmp_path / "rloo.py")

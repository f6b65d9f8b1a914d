"""Every lesson runs from top to bottom, and is kept with the pictures of a run."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def test_there_are_eight_lessons():
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{i:02}" for i in range(1, 9)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_lesson(path, tmp_path):
    kept = nbformat.read(path, as_version=4)
    code = [cell for cell in kept.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code), "kept without being run"
    pictures = [o for cell in code for o in cell.outputs if "image/png" in o.get("data", {})]
    assert pictures
    messages = [o.text for cell in code for o in cell.outputs if o.get("name") == "stderr"]
    assert not messages, "kept with warnings, which hold the paths of one machine"
    run = nbformat.read(path, as_version=4)
    NotebookClient(run, timeout=900, resources={"metadata": {"path": str(path.parent)}}).execute()
    shown = [o for cell in run.cells if cell.cell_type == "code" for o in cell.outputs]
    assert sum("image/png" in o.get("data", {}) for o in shown) == len(pictures)

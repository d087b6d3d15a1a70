# The rollout-gpu pool: rollout cells and evaluation, with vLLM on NVIDIA GPUs.
# UNTRIED: written where no container can be built and no GPU is; requirements/gpu.lock is resolved, not installed.
#
#   docker build -f infra/images/rollout-gpu.Dockerfile .
FROM python:3.11-slim-bookworm

# bubblewrap, libseccomp2: environments that run programs (docs/sandbox.md). g++: Triton compiles its launchers. The CUDA libraries come with the wheels, the driver from the host.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap ca-certificates g++ git libseccomp2 tini \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/driftline
COPY requirements/gpu.lock requirements/
RUN pip install --no-cache-dir uv==0.13.9 \
    && uv venv .venv \
    && uv pip sync --no-cache --index-strategy unsafe-best-match requirements/gpu.lock
COPY . .
RUN uv pip install --no-cache --no-deps --no-build-isolation --editable .

RUN useradd --create-home driftline
USER driftline
ENV PATH=/opt/driftline/.venv/bin:$PATH \
    DRIFTLINE_HOME=/opt/driftline \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    HF_HUB_OFFLINE=1 DO_NOT_TRACK=1 MLFLOW_DISABLE_TELEMETRY=true SPT_NOENV=1
ENTRYPOINT ["tini", "--"]
CMD ["prefect", "worker", "start", "--pool", "rollout-gpu", "--type", "process"]

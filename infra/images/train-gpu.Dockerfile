# The train-gpu pool: the DeepSpeed trainer on NVIDIA GPUs. Unlike rollout-gpu it has nvcc, for DeepSpeed's operators.
# UNTRIED: written where no container can be built and no GPU is; requirements/gpu.lock is resolved, not installed.
#
#   docker build -f infra/images/train-gpu.Dockerfile .
FROM nvidia/cuda:13.0.2-devel-ubuntu22.04

RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates curl g++ git ninja-build python3-pip tini \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/driftline
COPY requirements/gpu.lock requirements/
RUN pip install --no-cache-dir uv==0.13.9 \
    && uv venv --python 3.11 --python-preference only-managed .venv \
    && uv pip sync --no-cache --index-strategy unsafe-best-match requirements/gpu.lock
COPY . .
RUN uv pip install --no-cache --no-deps --no-build-isolation --editable .

RUN useradd --create-home driftline && mkdir cache && chown driftline cache
USER driftline
ENV PATH=/opt/driftline/.venv/bin:$PATH \
    DRIFTLINE_HOME=/opt/driftline \
    DRIFTLINE_CACHE_DIR=/opt/driftline/cache \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    HF_HUB_OFFLINE=1 DO_NOT_TRACK=1 MLFLOW_DISABLE_TELEMETRY=true SPT_NOENV=1
ENTRYPOINT ["tini", "--"]
CMD ["prefect", "worker", "start", "--pool", "train-gpu", "--type", "process"]

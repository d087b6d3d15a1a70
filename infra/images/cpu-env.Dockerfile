# The cpu-env pool: parent flows, environment refresh, registration; also MLflow and the Prefect server of compose.yaml.
# UNTRIED: written where no container can be built.
#
#   docker build -f infra/images/cpu-env.Dockerfile --build-arg PIP_EXTRA_INDEX_URL=<PyTorch's CPU wheel index> .
FROM python:3.11-slim-bookworm

# bubblewrap, libseccomp2: environments that run programs (docs/sandbox.md says what the container must allow). tini: reaps what flow runs leave.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap ca-certificates git libseccomp2 make tini \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/driftline
COPY infra/set_up.py infra/
COPY requirements/cpu.lock requirements/
COPY pyproject.toml README.md LICENSE ./
COPY src src
# The index is an argument, because PyPI's torch is not the CPU build that the lock names.
ARG PIP_EXTRA_INDEX_URL
RUN python infra/set_up.py --no-programs
COPY . .

RUN useradd --create-home driftline
USER driftline
ENV PATH=/opt/driftline/.venv/bin:$PATH \
    DRIFTLINE_HOME=/opt/driftline \
    DO_NOT_TRACK=1 MLFLOW_DISABLE_TELEMETRY=true PREFECT_SERVER_ANALYTICS_ENABLED=false
ENTRYPOINT ["tini", "--"]
CMD ["prefect", "worker", "start", "--pool", "cpu-env", "--type", "process"]

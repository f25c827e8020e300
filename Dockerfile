# Two images, for processors and for CUDA:
#   docker build --target cpu -t mrlm:cpu .
#   docker build --target cuda -t mrlm:cuda .
#   docker run --rm -v "$PWD":/work mrlm:cpu quickstart
#   docker run --rm --gpus all --shm-size 8g -v "$PWD":/work mrlm:cuda train --config experiment.yaml
FROM python:3.12-slim AS base
# Programs that models write run in Landlock here: Docker forbids the namespaces that bubblewrap needs.
RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap libseccomp2 \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 mrlm && install -d -o mrlm /work
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src

FROM base AS cuda
# The wheels of torch on PyPI contain the CUDA libraries; the driver is that of the host.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN pip install torch==2.13.0
COPY . .
RUN pip install -c constraints.txt ".[lora,data,llm,serve,ray]"
USER mrlm
WORKDIR /work
ENTRYPOINT ["mrlm"]
CMD ["--help"]

FROM base AS cpu
RUN pip install --index-url https://download.pytorch.org/whl/cpu torch==2.13.0
COPY . .
RUN pip install -c constraints.txt ".[lora,data,llm,serve,ray]"
USER mrlm
WORKDIR /work
ENTRYPOINT ["mrlm"]
CMD ["--help"]

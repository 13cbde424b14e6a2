# verl with an engine on NVIDIA GPUs, from the engine's lock. From the repository's root:
#
#   docker build -f docker/train.Dockerfile --build-arg ENGINE=sglang -t mcp-rollout-train .
#   docker run --gpus all --shm-size 16g -v ./rows:/rows mcp-rollout-train engine=sglang data.train_files=/rows/train.parquet ...
#
# CUDA comes with torch; the image's compiler is what triton needs. docs/train.md has the arguments.
FROM python:3.11
ARG ENGINE=vllm
WORKDIR /source
COPY . .
RUN python -m venv /opt/mcp-rollout
RUN /opt/mcp-rollout/bin/pip install --no-cache-dir --no-deps --require-hashes -r constraints/${ENGINE}_gpu.txt
RUN /opt/mcp-rollout/bin/pip install --no-cache-dir --no-deps .
ENV PATH=/opt/mcp-rollout/bin:$PATH
ENTRYPOINT ["python", "-m", "verl.trainer.main_ppo", "--config-dir", "configs", "--config-name", "mcp_grpo"]

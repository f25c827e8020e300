#!/usr/bin/env bash
# One process per device on the nodes of an allocation; the run continues when the job is requeued.
#   sbatch deploy/slurm.sh experiment.yaml outputs/experiment [KEY=VALUE...]
# The folder must be on a file system that all nodes share.
#SBATCH --job-name=mrlm
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

config=${1:?usage: sbatch deploy/slurm.sh CONFIG FOLDER [KEY=VALUE...]}
folder=${2:?usage: sbatch deploy/slurm.sh CONFIG FOLDER [KEY=VALUE...]}
shift 2

arguments=(train --config "$config" --output "$folder")
if compgen -G "$folder/checkpoint-*" >/dev/null || compgen -G "$folder/*/checkpoint-*" >/dev/null; then
  arguments+=(--resume "$folder")
fi

nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")  # not through head, which closes the pipe
first=${nodes%%$'\n'*}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-8}
srun torchrun \
  --nnodes="$SLURM_JOB_NUM_NODES" \
  --nproc_per_node="${SLURM_GPUS_ON_NODE:-8}" \
  --rdzv_id="$SLURM_JOB_ID" \
  --rdzv_backend=c10d \
  --rdzv_endpoint="$first:29500" \
  -m mrlm "${arguments[@]}" "$@"

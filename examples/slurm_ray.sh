#!/usr/bin/env bash
#SBATCH --job-name=zofc
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=4
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@120
# Usage: sbatch slurm_ray.sh STUDY [OPTION]..., for example: sbatch slurm_ray.sh main-table --seeds 3
set -euo pipefail

export ZOFC_DATA=${ZOFC_DATA:?the folder of images and weights, on every node}
export RAY_USAGE_STATS_ENABLED=0
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
RAY_AUTH_TOKEN=${RAY_AUTH_TOKEN:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}
port=6379
cpus=${SLURM_CPUS_PER_TASK:-1}
gpus=${SLURM_GPUS_ON_NODE:-0}
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | cut -d ' ' -f 1)

srun --nodes=1 --ntasks=1 --nodelist="$head" \
  ray start --head --node-ip-address="$address" --port=$port --num-cpus="$cpus" --num-gpus="$gpus" --block &
sleep 20
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
  srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$head" \
    ray start --address="$address:$port" --num-cpus="$cpus" --num-gpus="$gpus" --block &
fi

export RAY_ADDRESS="$address:$port"
zofc reproduce "$@" --on ray &
zofc=$!
trap 'kill -TERM $zofc' TERM
wait $zofc || status=$?
while kill -0 $zofc 2>/dev/null; do wait $zofc || status=$?; done
exit "${status:-0}"

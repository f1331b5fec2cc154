#!/bin/sh
# Training on two machines with four GPUs each: sbatch deploy/slurm.sh my.yaml runs/my
#
# The recipe, its text and the output directory must be on a disk that all machines share. If the job is lost, or
# submitted again after its time limit, it continues from the newest checkpoint.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
set -eu
resume=$([ ! -e "$2/recipe.yaml" ] || echo --resume)
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / SLURM_GPUS_ON_NODE))
export SLURM_KILL_BAD_EXIT=1 # end the job if one machine fails
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=120 # seconds to finish a step and write a checkpoint
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
exec srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "$SLURM_GPUS_ON_NODE" \
    --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$first:$((10000 + SLURM_JOB_ID % 50000))" \
    -m relattn_mt train "$1" --out "$2" $resume

#!/usr/bin/env bash
# Train the runs of a sweep on a Slurm cluster: a job array with one task per run, and a last job that evaluates the models and
# writes the table. Start it with bash, on a login node:
#
#   slurm/sweep.sh [flags of sbatch] -- FILE.yaml [flags of clearly sweep]
#   slurm/sweep.sh --gpus=1 --time=08:00:00 --account=NAME -- configs/sweeps/augcse_table7.yaml --init MODEL --data DIR --eval-data DIR
#   slurm/sweep.sh --nodes=4 --gpus-per-node=8 -- configs/sweeps/clear_table1.yaml --data DIR
#
# Each task is a job of slurm/pretrain_clear.sh, on as many nodes and devices as the flags ask for: it saves, is requeued and goes
# on after preemption and at its time limit. Runs that are done are not submitted again, so the same command continues after
# failures. ARRAY_LIMIT=N keeps at most N runs going at once.

#SBATCH --job-name=sweep
#SBATCH --nodes=1
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%x-%A_%a.out

set -uo pipefail

say() { echo "[$(date '+%F %T')] sweep: $*"; }
enter() {  # project folder: environment and import path
  project=$1
  # shellcheck disable=SC1091
  [[ -f $project/.venv/bin/activate ]] && source "$project/.venv/bin/activate"
  export PYTHONPATH=$project${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
}

# ---- on the login node: submit ----
if [[ ${1:-} != --project=* ]]; then
  for word in "$@"; do [[ $word == -- ]] && separated=1; done
  # Slurm runs a copy from its spool folder of what sbatch is given: nothing lies beside it.
  if [[ -z ${separated:-} || $# -lt 2 || -n ${SLURM_ARRAY_TASK_ID:-} || ! -f $(dirname "$0")/job.sh ]]; then
    echo "start this with bash on a login node, not by sbatch: slurm/sweep.sh [flags of sbatch] -- FILE.yaml [flags of clearly sweep]" >&2
    exit 2
  fi
  flags=()
  while [[ $1 != -- ]]; do flags+=("$1"); shift; done
  shift
  enter "$(cd "$(dirname "$0")/.." && pwd)"
  job=("$project/slurm/sweep.sh" "--project=$project")  # a word, since a site may export no variables to jobs
  # Checks the file and every flag before anything is in the queue. Number, row, seed, state, folder.
  plan=$(python -m pretrain.commands.sweep plan "$@") || exit
  runs=$(awk -F '\t' '$4 != "done" {print $1}' <<<"$plan" | paste -sd ,)
  submit() { sbatch --parsable "$@" | cut -d ';' -f 1; }
  after=()
  if [[ -n $runs ]]; then
    job_of_runs=$(submit ${flags[@]+"${flags[@]}"} --array="$runs${ARRAY_LIMIT:+%$ARRAY_LIMIT}" "${job[@]}" "$@")
    [[ -n $job_of_runs ]] || exit 1
    say "runs: array job $job_of_runs ($runs)"
    after=("--dependency=afterany:$job_of_runs")
  else
    say "all runs are done; gathering"
  fi
  last=$(submit ${flags[@]+"${flags[@]}"} ${after[@]+"${after[@]}"} --job-name=sweep-gather --output=slurm-%x-%j.out "${job[@]}" gather "$@")
  [[ -n $last ]] || exit 1
  say "table: job $last, when they are done"
  exit 0
fi

# ---- on a node: one run, or the gathering ----
enter "${1#*=}"
shift
if [[ -z ${SLURM_ARRAY_TASK_ID:-} ]]; then
  exec srun --export=ALL --nodes=1 --ntasks=1 python -m pretrain.commands.sweep "$@"
fi
words=$(python -m pretrain.commands.sweep plan "$@" --words-of "$SLURM_ARRAY_TASK_ID") || exit
if [[ -z $words ]]; then
  say "run $SLURM_ARRAY_TASK_ID is done"
  exit 0
fi
mapfile -t flags <<<"$words"
exec bash "$project/slurm/pretrain_clear.sh" "${flags[@]}"

#!/usr/bin/env bash
# Fine-tune a model on GLUE on a Slurm cluster: a job array with one task per run (GLUE task x seed, and x rate and batch with
# --sweep), and a last job that gathers the figures. Start it with bash, on a login node:
#
#   slurm/finetune_glue.sh [flags of sbatch] -- MODEL [flags of clearly glue]
#   slurm/finetune_glue.sh --gpus=1 --time=08:00:00 --account=NAME -- runs/clear_base --eval-data DIR --predict
#
# Runs that have all that is asked for are not submitted again, so the same command continues after failures. A run that
# is preempted or reaches its time limit saves, is requeued and resumes. ARRAY_LIMIT=N keeps at most N runs going at once.

#SBATCH --job-name=glue
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%x-%A_%a.out

set -uo pipefail

EXIT_REQUEUE=75  # the run was asked to stop and has saved (pretrain/common/shutdown.py)
say() { echo "[$(date '+%F %T')] finetune_glue: $*"; }
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
    echo "start this with bash on a login node, not by sbatch: slurm/finetune_glue.sh [flags of sbatch] -- MODEL [flags of clearly glue]" >&2
    exit 2
  fi
  flags=()
  while [[ $1 != -- ]]; do flags+=("$1"); shift; done
  shift
  enter "$(cd "$(dirname "$0")/.." && pwd)"
  # Checks every flag, the model and the data, before anything is in the queue. Number, task, seed, rate, batch, state.
  plan=$(python -m finetune.glue plan "$@") || exit
  job=("$0" "--project=$project")  # a word, since a site may export no variables to jobs
  submit() { sbatch --parsable "$@" | cut -d ';' -f 1; }
  numbers=$(awk -F '\t' '$6 == "to do" {print $1}' <<<"$plan" | paste -sd ,) runs=''
  if [[ -z $numbers ]]; then
    say "all runs are done; gathering"
  else
    runs=$(submit "${flags[@]}" --array="$numbers${ARRAY_LIMIT:+%$ARRAY_LIMIT}" "${job[@]}" "$@")
    [[ -n $runs ]] || exit 1
    say "runs: array job $runs ($numbers)"
  fi
  after=()
  [[ -n $runs ]] && after=(--dependency="afterany:$runs")
  gather=$(submit "${flags[@]}" "${after[@]}" --job-name=glue-gather --output=slurm-%x-%j.out "${job[@]}" gather "$@")
  [[ -n $gather ]] || exit 1
  say "figures: job $gather, when they are done"
  exit 0
fi

# ---- on a node: one run, or the gathering ----
enter "${1#*=}"
shift
# shellcheck source-path=SCRIPTDIR source=job.sh
source "$project/slurm/job.sh"
if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
  set -- train "$@" --run-numbers "$SLURM_ARRAY_TASK_ID"
fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}}}
request='' pid=''
stop() {
  request=$1
  say "$2: asking the run to save and stop"
  [[ -n $pid ]] && kill -USR1 "$pid" 2>/dev/null
}
trap 'stop time-limit "the time limit is near (USR1)"' USR1
trap 'stop terminate "SIGTERM"' TERM
say "start $((${SLURM_RESTART_COUNT:-0} + 1)) of $job on $(hostname)"
# A step: Slurm tells steps, and not this script, that the job is preempted. exec: signals to the task reach Python itself.
srun --export=ALL --nodes=1 --ntasks=1 bash -c 'exec python -m finetune.glue "$@"' run "$@" &
pid=$!
code=0
while :; do
  wait "$pid"
  code=$?
  kill -0 "$pid" 2>/dev/null || break  # a trap interrupts wait: look whether the run has really ended
done
((code == 0)) && exit 0
[[ -z $request && $code == "$EXIT_REQUEUE" ]] && request="asked to save, or its storage failed"
end_job "$code" "$request" "the same command, which resumes from what is saved"

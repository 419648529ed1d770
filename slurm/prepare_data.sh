#!/usr/bin/env bash
# Prepare a corpus on one node of a Slurm cluster, over as many requeues as it takes.
#
#   sbatch [sbatch flags] slurm/prepare_data.sh --source 'corpus/*.jsonl.zst' --out DIR [flags of clearly prepare]
#   sbatch --time=12:00:00 --account=NAME slurm/prepare_data.sh --config configs/data_wikipedia_bookcorpus.yaml --out DIR
#
# All cores of the node work; what is finished is not redone after preemption or the time limit. 25 GB of text take some
# four hours of one core.
#
# A Hugging Face dataset is read over the network; where compute nodes have none, download it on a login node first and
# name its folder as the source.

#SBATCH --job-name=prepare
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@60
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%x-%j.out

set -uo pipefail

say() { echo "[$(date '+%F %T')] prepare_data: $*"; }
if [[ -z ${SLURM_JOB_ID:-} ]]; then
  echo "this is a batch script: submit it with  sbatch $0 --source ... --out DIR" >&2
  exit 2
fi

# Slurm runs a copy of this file from its spool folder, so the project is found by the name it was submitted under.
# With the words given to it; for one of the tasks of an array all of them are shown.
submitted=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=//p' | head -n 1)
if [[ $submitted =~ ^(.*/slurm/[a-z_]+\.sh)( |$) ]]; then  # a path may hold blanks
  submitted=${BASH_REMATCH[1]}
else
  submitted=${submitted%% *}
fi
project=$(cd "$(dirname "${submitted:-$0}")/.." 2>/dev/null && pwd)
[[ -f $project/pretrain/prepare/run.py ]] || project=$SLURM_SUBMIT_DIR
if [[ ! -f $project/pretrain/prepare/run.py ]]; then
  say "pretrain/prepare/run.py is neither beside $submitted nor under $SLURM_SUBMIT_DIR; submit from the project's folder" >&2
  exit 2
fi
# shellcheck source-path=SCRIPTDIR source=job.sh
source "$project/slurm/job.sh"
# shellcheck disable=SC1091
[[ -f $project/.venv/bin/activate ]] && source "$project/.venv/bin/activate"
export PYTHONPATH=$project${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1

workers=(--workers "${SLURM_CPUS_ON_NODE:-1}")
for flag in "$@"; do
  [[ $flag == --workers || $flag == --workers=* ]] && workers=()
done

# Near the time limit, on preemption and when cancelled the work is simply stopped: every finished task is kept.
request=''
stop() {
  request=$1
  say "$2: stopping; finished tasks are kept"
  kill -TERM "$pid" 2>/dev/null
}
say "start $((${SLURM_RESTART_COUNT:-0} + 1)) of job $job on $(hostname), ${SLURM_CPUS_ON_NODE:-1} cores"
# A step: Slurm tells steps, and not this script, that the job is preempted, and ends all their processes with them.
srun --export=ALL --nodes=1 --ntasks=1 --cpus-per-task="${SLURM_CPUS_ON_NODE:-1}" \
  python -m pretrain.prepare "$@" "${workers[@]}" &
pid=$!
trap 'stop time-limit "the time limit is near (USR1)"' USR1
trap 'stop terminate "SIGTERM"' TERM
code=0
while :; do
  wait "$pid"
  code=$?
  kill -0 "$pid" 2>/dev/null || break  # a trap interrupts wait: look whether the work has really ended
done

if ((code == 0)); then
  exit 0
fi
[[ $request == time-limit ]] || request=  # SIGTERM without a preemption is a request to end
end_job "$code" "$request" "the same sbatch command; finished tasks are not redone"

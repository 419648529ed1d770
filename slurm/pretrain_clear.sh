#!/usr/bin/env bash
# Pretrain on a Slurm cluster, over as many requeues as it takes.
#
#   sbatch [sbatch flags] slurm/pretrain_clear.sh [flags of pretrain/main.py]
#   sbatch --nodes=4 --gpus-per-node=8 --time=24:00:00 --account=NAME \
#          slurm/pretrain_clear.sh --config configs/clear_base.yaml --data DIR
#
# One process per GPU, or one per node where there is none. The run folder is runs/JOBNAME-JOBID unless --run names
# another; a requeued job keeps its id, and with it the folder, and resumes from its newest checkpoint.
# CLEAR_CONTAINER=FILE.sif runs the ranks in an image of slurm/clearly.def, by Apptainer.
# docs/runs.md tells what happens on preemption, at the time limit and on failures.

#SBATCH --job-name=clear
#SBATCH --nodes=2
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%x-%j.out

set -uo pipefail

EXIT_REQUEUE=75       # a rank was asked to stop, has saved, and asks for a requeue (pretrain/common/shutdown.py)
RESTARTS_WITHOUT_PROGRESS=3

say() { echo "[$(date '+%F %T')] pretrain_clear: $*"; }
if [[ -z ${SLURM_JOB_ID:-} ]]; then
  echo "this is a batch script: submit it with  sbatch $0 [flags of pretrain/main.py]" >&2
  exit 2
fi
restarts=${SLURM_RESTART_COUNT:-0}

# ---- the project, its environment, the run folder ----
# Slurm runs a copy of this file from its spool folder, so the project is found by the name it was submitted under.
# With the words given to it; for one of the tasks of an array all of them are shown.
submitted=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=//p' | head -n 1)
if [[ $submitted =~ ^(.*/slurm/[a-z_]+\.sh)( |$) ]]; then  # a path may hold blanks
  submitted=${BASH_REMATCH[1]}
else
  submitted=${submitted%% *}
fi
project=$(cd "$(dirname "${submitted:-$0}")/.." 2>/dev/null && pwd)
[[ -f $project/pretrain/main.py ]] || project=$SLURM_SUBMIT_DIR
if [[ ! -f $project/pretrain/main.py ]]; then
  say "pretrain/main.py is neither beside $submitted nor under $SLURM_SUBMIT_DIR; submit from the project's folder" >&2
  exit 2
fi
# shellcheck source-path=SCRIPTDIR source=job.sh
source "$project/slurm/job.sh"
# shellcheck disable=SC1091
[[ -f $project/.venv/bin/activate ]] && source "$project/.venv/bin/activate"

run="runs/$SLURM_JOB_NAME-$SLURM_JOB_ID"
resume=auto
flags=()
while (($#)); do
  case $1 in
    --run | --folder) run=${2:?$1 needs a folder}; shift ;;
    --run=* | --folder=*) run=${1#*=} ;;
    --resume | --checkpoint.resume) resume=${2:?$1 needs a value}; shift ;;
    --resume=* | --checkpoint.resume=*) resume=${1#*=} ;;
    *) flags+=("$1") ;;
  esac
  shift
done
shown=()
for flag in ${flags[@]+"${flags[@]}"}; do  # a URL without its user, password and query, which may have a key
  [[ $flag == *://* ]] && flag=$(sed -E 's#,([a-z0-9]+://)#\n,\1#g; s#[?][^]" }\n]*=[^]" }\n]*##g
    s#://[^/@:]*:[^]"\n]*@#://#g; s#((https?|wss?)://)[^/@\n]*@#\1#g; s#\n##g' <<<"$flag")
  shown+=("$flag")
done
again=$(printf ' %q' sbatch "$submitted" ${shown[@]+"${shown[@]}"} --run "$run")  # to be pasted into a shell
((restarts)) && resume=auto  # whatever the first start came from, a restart resumes from what this job has saved
mkdir -p "$run" || exit 1

# ---- crash-loop guard: a job that restarts and restarts without a new checkpoint would burn its nodes for ever ----
newest_checkpoint() {
  local found
  found=$(find "$run/checkpoints" -maxdepth 1 -type d -regex '.*/step-[0-9]+' -printf '%f\n' 2>/dev/null | sort | tail -n 1)
  echo "${found:-none}"
}
newest=$(newest_checkpoint)
stuck=0
if ((restarts)) && read -r last_newest last_stuck 2>/dev/null <"$run/slurm-restarts" &&
  [[ $newest == "$last_newest" && $last_stuck =~ ^[0-9]$ ]]; then  # arithmetic would run commands in anything but digits
  stuck=$((last_stuck + 1))
fi
echo "$newest $stuck" >"$run/slurm-restarts"
if ((stuck >= RESTARTS_WITHOUT_PROGRESS)); then
  say "stopped: $stuck restarts without a new checkpoint in $run (newest: $newest). Look above for the reason; checkpoint" \
    "more often (--checkpoint.every), or ask for a longer --time. Then:$again" >&2
  exit 1
fi

# ---- one process per device, rendezvous on the first node ----
nodes=$SLURM_JOB_NUM_NODES
gpus=${SLURM_GPUS_ON_NODE:-$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')}
per_node=${SLURM_NTASKS_PER_NODE:-$((gpus > 0 ? gpus : 1))}
cpus=$((${SLURM_CPUS_ON_NODE:-1} / per_node))
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# The address Slurm itself reaches the node at: a node's name need not be known to the resolver.
address=$(scontrol show node "$first" | grep -Eo 'NodeAddr=[^ ]*' | cut -d= -f2)
port=$((12000 + SLURM_JOB_ID % 20000))  # below Linux's ephemeral ports, which a passing connection may hold
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done  # this script runs on the first node
export MASTER_ADDR=${address:-$first} MASTER_PORT=$port PYTHONUNBUFFERED=1
step=(srun --export=ALL --nodes="$nodes" --cpus-per-task="$((cpus > 0 ? cpus : 1))")
[[ -n ${SLURM_GPUS_ON_NODE:-} ]] && step+=(--gres="gpu:$gpus" --gpu-bind=none)

# ---- the Python of the ranks: the environment's, or that of an image made by slurm/clearly.def, with the code in it ----
python=(python "$project/pretrain/main.py")
if [[ -n ${CLEAR_CONTAINER:-} ]]; then
  if [[ ! -e $CLEAR_CONTAINER ]] || ! command -v apptainer >/dev/null; then
    say "CLEAR_CONTAINER=$CLEAR_CONTAINER: no such image here, or no apptainer on the PATH; docs/runs.md says how to build it" >&2
    exit 2
  fi
  python=(apptainer exec)
  ((gpus > 0)) && python+=(--nv)
  python+=("$CLEAR_CONTAINER" python /opt/clear/pretrain/main.py)
fi

# ---- signals: note the request, pass it to the ranks as USR1, keep waiting for them ----
request='' srun_pid='' interrupted=''
stop() {
  interrupted=1 request=$1
  say "$2: asking the ranks to save and stop"
  [[ -n $srun_pid ]] && kill -USR1 "$srun_pid" 2>/dev/null
}
trap 'stop time-limit "the time limit is near (USR1)"' USR1
trap 'stop terminate "SIGTERM"' TERM

run_step() {  # srun in the background and `wait`: bash runs a trap only between commands, and wait is one it interrupts
  local code=0 previous
  "$@" &
  srun_pid=$!
  while :; do
    interrupted='' previous=$code
    wait "$srun_pid"
    code=$?
    [[ -n $interrupted ]] || break
  done
  ((code == 127 && previous)) && code=$previous  # the signal came just as srun ended: its status was read before
  srun_pid=
  return "$code"
}

# ---- the ranks ----
code=$EXIT_REQUEUE
if [[ -z $request ]]; then
  say "start $((restarts + 1)) of job $job: $nodes nodes x $per_node processes, $cpus cores each, newest checkpoint" \
    "in $run: $newest; stop it with  touch$(printf ' %q' "$run/stop")  or  scancel -s USR1 $job"
  # shellcheck disable=SC2016
  run_step "${step[@]}" --ntasks="$((nodes * per_node))" --ntasks-per-node="$per_node" --kill-on-bad-exit=0 --wait=60 \
    bash -c '
      export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
      export LOCAL_WORLD_SIZE=$1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-$2}
      shift 2
      exec "$@"  # exec: signals to the task reach Python itself
    ' rank "$per_node" "$cpus" "${python[@]}" ${flags[@]+"${flags[@]}"} --run "$run" --resume "$resume"
  code=$?
fi

# ---- what now ----
if ((code == 0)); then
  say "done: $run"
  exit 0
fi
# One rank says for all how they ended (pretrain/watch/ending.py); srun's status may be that of a rank that was killed.
verdict=''
[[ $run/watch/end -nt $run/slurm-restarts ]] && verdict=$(head -n 1 "$run/watch/end")
if [[ -z $request ]]; then
  if [[ $verdict == "$EXIT_REQUEUE" ]]; then
    request="a fault that may pass"
  elif [[ -z $verdict && $code == "$EXIT_REQUEUE" ]]; then
    request="asked to save, or its storage failed"
  elif [[ -z $verdict ]] && ((code == 128 + $(kill -l USR1))); then
    request="asked to save, before the ranks could"  # during their start USR1 still kills
  elif [[ -z $verdict ]] && ((code > 128 && code != 129 && code != 130 && code != 143)) && [[ $(newest_checkpoint) != "$newest" ]]; then
    request="killed by signal $((code - 128)), after a new checkpoint"  # by the kernel, or by NCCL's watchdog
  fi
fi
end_job "$code" "$request" "${again# }"

#!/usr/bin/env bash
# Fine-tune one model on all of GLUE, task after task; stopped at any point, the same command continues.
#
#   finetune/run_glue.sh MODEL [flags of finetune.glue]
#   finetune/run_glue.sh runs/clear_micro --eval-data DIR --tasks RTE,MRPC,CoLA
#
# A task that fails does not keep the others from running. On a Slurm cluster: slurm/finetune_glue.sh, all runs at once.

set -uo pipefail
if (($# == 0)) || [[ $1 == -* ]]; then
  sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
project=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck disable=SC1091
[[ -f $project/.venv/bin/activate ]] && source "$project/.venv/bin/activate"
export PYTHONPATH=$project${PYTHONPATH:+:$PYTHONPATH}

# The plan checks every flag before anything long; its lines are: number, task, seed, rate, batch, state.
plan=$(python -m finetune.glue plan "$@") || exit
failed=()
for task in $(cut -f 2 <<<"$plan" | uniq); do
  numbers=$(awk -F '\t' -v task="$task" '$2 == task && $6 == "to do" {print $1}' <<<"$plan" | paste -sd ,)
  [[ -n $numbers ]] || continue
  python -m finetune.glue train "$@" --run-numbers "$numbers"
  code=$?
  ((code >= 75)) && exit "$code"  # it was asked to leave: 75 USR1, 129 SIGHUP, 130 Ctrl-C, 143 terminate
  ((code)) && failed+=("$task")
done
python -m finetune.glue gather "$@" || exit
if ((${#failed[@]})); then
  echo "failed: ${failed[*]}; the reasons are above" >&2
  exit 1
fi

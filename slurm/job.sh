# What the batch scripts share: Slurm's name of this job, and whether the job goes on when its work has ended.
# Sourced by them, never submitted.

# One task of an array is ARRAY_TASK. $SLURM_JOB_ID is no name for it: that of one of the tasks is the id of the whole array, and
# `scontrol requeue` of it would requeue every task.
job=${SLURM_ARRAY_TASK_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-${SLURM_JOB_ID:-}}

job_field() { scontrol show job "$job" | grep -Eo "(^| )$1=[^ ]*" | head -n 1 | cut -d= -f2-; }

# end_job CODE WISH AGAIN: requeue this job, or say why not; exits. To be called when the work has ended with the exit status CODE.
#   WISH   what asked it to end and wants it to go on (time-limit ...), or nothing
#   AGAIN  how to go on by hand
end_job() {
  local code=$1 wish=$2 again=$3 state started preempted restarts
  state=$(job_field JobState) restarts=$(job_field Restarts)
  started=$(job_field StartTime) preempted=$(job_field PreemptTime)
  [[ $preempted == 2* && ! $preempted < $started ]] || preempted=  # None, or left from an earlier start
  if ((${restarts:-0} > ${SLURM_RESTART_COUNT:-0})); then
    say "Slurm has requeued the job; it starts again by itself"
    exit "$code"
  fi
  if [[ $state != RUNNING ]]; then
    say "Slurm is ending the job (state ${state:-unknown}): cancelled or timed out, not requeued. To go on: $again" >&2
    exit "$code"
  fi
  if [[ -z $preempted && -z $wish ]]; then
    say "failed (exit status $code): not requeued, for the same would happen again. The reason is above. To go on: $again" >&2
    exit "$code"
  fi
  # A job that ends by itself within the grace time of a preemption counts as failed, and Slurm does not requeue it: this does,
  # which also frees the nodes before the grace time is over.
  say "requeueing $job (${preempted:+preempted at $preempted, }${wish:+$wish, }exit status $code)"
  if ! scontrol requeue "$job"; then
    restarts=$(job_field Restarts)
    if ((${restarts:-0} > ${SLURM_RESTART_COUNT:-0})); then
      say "Slurm was faster and has requeued the job; it starts again by itself"
    else
      say "could not requeue. To go on: $again" >&2
    fi
    exit "$code"
  fi
  sleep 60  # until Slurm ends it; an exit now would count as the job's end
  exit "$code"
}

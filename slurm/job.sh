# What the batch scripts share: the name of this job in Slurm, and whether the job is requeued when its work ends.
# Sourced by them, never submitted.

# One task of an array is ARRAY_TASK. $SLURM_JOB_ID is no name for it: that of one of the tasks is the id of the whole array, and
# `scontrol requeue` of it would requeue every task.
job=${SLURM_ARRAY_TASK_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-${SLURM_JOB_ID:-}}

# srun passes on what sbatch --export named, and nothing under NONE, unless it is told --export=ALL: all steps are.

job_field() { scontrol show job "$job" | grep -Eo "(^| )$1=[^ ]*" | head -n 1 | cut -d= -f2-; }
restarts_in_slurm() { job_field Restarts | grep -Ex '[0-9]+' || echo 0; }

# end_job CODE REQUEST AGAIN: requeue this job, or say why not; exits. To be called when the work has ended with the exit status CODE.
#   REQUEST  why it was asked to stop and to be requeued (time-limit ...), or nothing
#   AGAIN    the command to continue by hand
end_job() {
  local code=$1 request=$2 again=$3 state started preempted restarts
  state=$(job_field JobState) restarts=$(restarts_in_slurm)
  started=$(job_field StartTime) preempted=$(job_field PreemptTime)
  [[ $preempted == 2* && ! $preempted < $started ]] || preempted=  # None, or left from an earlier start
  if ((restarts > ${SLURM_RESTART_COUNT:-0})); then
    say "Slurm has requeued the job; it starts again by itself"
    exit "$code"
  fi
  if [[ $state != RUNNING ]]; then
    say "Slurm is ending the job (state ${state:-unknown}): cancelled or timed out, not requeued. To continue: $again" >&2
    exit "$code"
  fi
  if [[ -z $preempted && -z $request ]]; then
    say "failed (exit status $code): not requeued: the same would happen again. The reason is above. To continue: $again" >&2
    exit "$code"
  fi
  # A job that ends by itself within the grace time of a preemption counts as failed, and Slurm does not requeue it: this does,
  # which also frees the nodes before the grace time is over.
  say "requeueing $job (${preempted:+preempted at $preempted, }${request:+$request, }exit status $code)"
  if ! scontrol requeue "$job"; then
    restarts=$(restarts_in_slurm)
    if ((restarts > ${SLURM_RESTART_COUNT:-0})); then
      say "Slurm was faster and has requeued the job; it starts again by itself"
    else
      say "could not requeue. To continue: $again" >&2
    fi
    exit "$code"
  fi
  sleep 60  # until Slurm ends it; an exit now would count as the job's end
  exit "$code"
}

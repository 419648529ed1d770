"""Show a run in an experiment tracker: TensorBoard, trackio, Weights & Biases, MLflow.

metrics.jsonl is the run's own record; a tracker is a view of it. `outside` feeds every tracker from a thread
of its own, first with the rows of metrics.jsonl that the tracker does not have yet, then with the new ones.
TensorBoard's files are written by the telemetry itself.
"""

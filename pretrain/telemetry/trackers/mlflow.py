"""MLflow: a server, or a database in the run folder (https://mlflow.org/docs)."""

import os
from typing import Any

from pretrain.common.files import make_folder
from pretrain.telemetry.trackers.tracker import PROJECT, TrackedRun, Tracker

_TEXT = 500  # characters of a parameter that every version of MLflow takes
_PARAMETERS = 100  # that MLflow takes in one call


class Mlflow(Tracker):
    """A run of MLflow, at MLFLOW_TRACKING_URI or in RUN/trackers/mlflow.db.

    The experiment is MLFLOW_EXPERIMENT_NAME's. MLflow has no call that deletes a metric's value, so that the
    steps done again after a resume stay as they were sent first.
    """

    def __init__(self) -> None:
        self._client: Any = None
        self._run_id = ""
        self._last: dict[str, int] = {}

    def open(self, run: TrackedRun) -> None:
        import mlflow

        make_folder(run.place)
        place = run.place.resolve()
        local = f"sqlite:///{place / 'mlflow.db'}"
        self._client = mlflow.MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or local)
        known = run.identity("mlflow")
        if known is None:
            self._run_id = self._create(run, f"file://{place}/mlflow")
            run.keep_identity("mlflow", self._run_id)
            return
        self._run_id = known
        self._client.update_run(known, status="RUNNING")
        for name in self._client.get_run(known).data.metrics:
            history = self._client.get_metric_history(known, name)
            self._last[name] = max(metric.step for metric in history)

    def _create(self, run: TrackedRun, artifacts: str) -> str:
        from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        if experiment is not None:
            number = experiment.experiment_id
        else:  # a server keeps artifacts where it wants; the local database would beside the working folder
            here = None if os.environ.get("MLFLOW_TRACKING_URI") else artifacts
            number = self._client.create_experiment(name, artifact_location=here)
        run_id: str = self._client.create_run(number, run_name=run.name).info.run_id
        settings = [Param(key, str(value)[:_TEXT]) for key, value in run.settings.items()]
        for first in range(0, len(settings), _PARAMETERS):
            self._client.log_batch(run_id, params=settings[first : first + _PARAMETERS])
        return run_id

    def last_step(self, name: str) -> int:
        return self._last.get(name, -1)

    def write(self, step: int, wall_time: float, values: dict[str, float]) -> None:
        from mlflow.entities import Metric

        milliseconds = round(1000 * wall_time)
        metrics = [Metric(name, value, milliseconds, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def close(self) -> None:
        if self._run_id:
            self._client.set_terminated(self._run_id)

"""What the trackers have of a run, read back from their own files."""

import json
import struct
from pathlib import Path


def wandb_rows(folder: Path) -> tuple[set[str], dict[tuple[str, int], list[float]]]:
    """The ids of the offline runs in FOLDER/trackers/wandb that `wandb sync` would upload, and their values.

    (name, step) -> values, in the order in which they were written.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    ids, values = set(), {}
    for file in sorted((folder / "trackers" / "wandb").glob("offline-run-*/run-*.wandb")):
        for data in _log_records(file.read_bytes()):
            record = Record.FromString(data)
            if record.WhichOneof("record_type") == "run":
                ids.add(record.run.run_id)
            items = record.request.partial_history if record.HasField("request") else record.history
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items.item}
            step = row.pop("_step", items.step.num)
            for name, value in row.items():
                if not name.startswith("_"):
                    values.setdefault((name, step), []).append(value)
    return ids, values


def _log_records(data: bytes) -> list[bytes]:
    """The records of a .wandb file: LevelDB's log format, behind a header of 7 bytes."""
    records, position, parts = [], 7, b""
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:  # no chunk header fits into the rest of a block
            position += 32768 - position % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        chunk = data[position + 7 : position + 7 + length]
        position += 7 + length
        if not kind or len(chunk) < length:
            break  # cut by a kill
        parts += chunk
        if kind in (1, 4):  # whole, or the last part
            records.append(parts)
            parts = b""
    return records


def mlflow_rows(folder: Path) -> tuple[set[str], dict[tuple[str, int], list[float]]]:
    """The same of the runs in FOLDER/trackers/mlflow.db."""
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{(folder / 'trackers' / 'mlflow.db').resolve()}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments)
    values: dict[tuple[str, int], list[float]] = {}
    for run in runs:
        for name in run.data.metrics:
            for metric in client.get_metric_history(run.info.run_id, name):
                values.setdefault((name, metric.step), []).append(metric.value)
    return {run.info.run_id for run in runs}, values

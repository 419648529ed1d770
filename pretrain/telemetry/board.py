"""Write metrics as TensorBoard reads them, in the thread that calls, and never half a record.

The library's own writer has a thread that ends, with a traceback, at the first error of the disk, and takes
with it what it had not written.
"""

import io
import os
import socket
import time
from pathlib import Path
from typing import Any

from pretrain.common.files import AppendedFile, make_folder
from pretrain.telemetry.formats import flatten


class Board:
    """An event file of one start of a run.

    Args:
        purge: TensorBoard hides what earlier files have of this step and later ones; it would draw both.
    """

    def __init__(self, folder: Path, purge: int) -> None:
        # a second to import, which users of the other functions of telemetry should not wait for
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        make_folder(folder)
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        number = sum(1 for _ in folder.glob(f"{name}.*"))
        self.file = AppendedFile(folder / f"{name}.{number}")
        log = SessionLog(status=SessionLog.START)
        version = Event(wall_time=time.time(), file_version="brain.Event:2")
        self._append(version, Event(wall_time=time.time(), step=purge, session_log=log))

    def write(self, step: int, wall_time: float, metrics: dict[str, Any]) -> None:
        """Append all numbers of a record, and its warning. Raises: OSError; they wait then."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard.summary import text

        values = [Summary.Value(tag=name, simple_value=value) for name, value in flatten(metrics)]
        if "warning" in metrics:
            values += text("warning", metrics["warning"]).value
        self._append(Event(wall_time=wall_time, step=step, summary=Summary(value=values)))

    def _append(self, *events: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        buffer = io.BytesIO()
        for event in events:
            RecordWriter(buffer).write(event.SerializeToString())
        self.file.append(buffer.getvalue())

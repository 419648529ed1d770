"""Checks of `gpu_accept.py` with graphs, which a CPU has by calling what was recorded again.

Run as `python accept_worker.py OUT.json PART,PART...`: writes what each found.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import gpu_accept
from flash_reference import flash_on_cpu
from graph_recorder import Recorder

gpu_accept.start_processes()
accept = gpu_accept.Accept("cpu")
accept.record = Recorder()
with flash_on_cpu():
    found = {part: gpu_accept.PARTS[part](accept) for part in sys.argv[2].split(",")}
Path(sys.argv[1]).write_text(json.dumps(found))
gpu_accept.torch.distributed.destroy_process_group()

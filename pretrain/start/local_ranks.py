"""One rank for each core, if there is no GPU and nobody has chosen the number of ranks.

A step consists of many kernels of a millisecond or less, and the threads of one rank wait for each other at
each of them; ranks meet once a step. The plain command therefore starts further processes of itself, on this
machine, and is rank 0 of them. The order of the data and the global batches do not depend on the number of
ranks.

The number is chosen by whoever sets train.threads, OMP_NUM_THREADS, or a number of processes by a launcher.
DeepSpeed's launcher without such a flag starts a process for each NUMA node, which is no choice.
"""

import atexit
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from pretrain.common.cores import threads_of_user, usable_cores
from pretrain.common.error_output import LOCAL_RANKS
from pretrain.common.errors import UserError
from pretrain.common.memory import processes_that_fit
from pretrain.common.processes import die_with, free_port, stat_fields
from pretrain.config.run import Config
from pretrain.data.manifest import MANIFEST, read_manifest

_CHOOSE_RANKS = {
    *("-H", "--hostfile", "-i", "--include", "-e", "--exclude", "--num_nodes", "--num_gpus"),
    *("--num_accelerators", "--launcher", "--force_multi", "--bind_cores_to_rank"),
}
"""Flags of DeepSpeed's launcher by which its user chooses the ranks."""
_BYTES_OF_A_RANK = 2 << 30  # libraries, and the activations of a micro-batch
_SECONDS_TO_END = 60.0
_SECONDS_TO_EXPLAIN = 30.0  # that a rank takes to say how a run ended (`pretrain.watch.ending`)


def require_positions(config: Config, most: int, model: str = "") -> None:
    """Refuse data of longer sequences than the `most` tokens that a model takes.

    Data are those that are there, or that will be prepared; what `data.remote` brings is not known.

    model: KEY=SOURCE of one that has weights; "": the one to be built.
    """
    data = config.data
    lengths = {
        f"{folder} has": (read_manifest(folder)["max_length"], f"prepare it with max_length {most}")
        for folder in [one.folder for one in data.sets] or [config.data_folder]
        if (folder / MANIFEST).is_file()
    }
    if not lengths and "sources" in data.prepare.model_fields_set and data.remote is None:
        shorter = f"--data.prepare.max_length {most}"
        lengths["data.prepare.max_length makes"] = data.prepare.max_length, shorter
    for what, (longest, shorter) in lengths.items():
        if longest > most:
            takes = f"{model} takes {most} positions: name one with {longest}"
            if not model:
                takes = f"the model takes {most} (model.max_positions): give --model.max_positions {longest}"
            raise UserError(f"{what} sequences of up to {longest} tokens, and {takes}, or {shorter}")


def choose_ranks(config: Config) -> int:
    """Return how many ranks this process is to become: 1 if the user has chosen, or a GPU is there.

    Otherwise the largest number of which each has a core and a lane, and which fit into half of the free
    memory; 1 also with `objective.scope: local`.
    """
    import torch  # a second: not if only flags are read

    chosen = config.train.threads or threads_of_user() or _launcher_chose()
    if torch.cuda.is_available() or chosen or config.objective.scope == "local":
        return 1
    processes = int(os.environ.get("WORLD_SIZE", 1))  # of DeepSpeed's launcher, one for each NUMA node
    most = min(usable_cores() // processes, _fitting_memory(config) // processes)
    return max(1, min(most, config.data.lanes // processes))


def start_local_ranks(ranks: int) -> list[subprocess.Popen]:
    """Start the other ranks of this process's share, which end with it; this one becomes the first."""
    if ranks == 1:
        return []
    index, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    world = str(ranks * processes)
    os.environ.update(WORLD_SIZE=world, LOCAL_WORLD_SIZE=world, LOCAL_SIZE=world)
    os.environ[LOCAL_RANKS] = world
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(free_port()))

    def as_rank(number: int) -> dict[str, str]:
        return {"RANK": str(number), "LOCAL_RANK": str(number)}

    print(f"starting {ranks} ranks ...", file=sys.stderr, flush=True)
    parent = os.getpid()
    others = [
        subprocess.Popen(
            [sys.executable, *sys.orig_argv[1:]],
            env=os.environ | as_rank(number),
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: die_with(parent),
        )
        for number in range(index * ranks + 1, (index + 1) * ranks)
    ]
    os.environ.update(as_rank(index * ranks))
    threading.Thread(target=_end_with_any, args=(others,), daemon=True).start()
    atexit.register(_wait_for_end, others)
    return others


def _launcher_chose() -> bool:
    """Return whether somebody has chosen the number of processes, and this is one of them."""
    if "WORLD_SIZE" not in os.environ:
        return False
    if "TORCHELASTIC_RUN_ID" in os.environ or LOCAL_RANKS in os.environ:
        return True
    commands = _launcher_commands()
    words = {word.split("=")[0] for command in commands for word in command}
    return not commands or bool(words & _CHOOSE_RANKS)


def _launcher_commands() -> list[list[str]]:
    """Return the command lines of DeepSpeed's launcher and its starter, up to the script that they run."""
    commands, process = [], os.getppid()
    for _ in range(3):
        try:
            words = Path(f"/proc/{process}/cmdline").read_text(errors="replace").split("\0")
        except OSError:
            break
        if any("deepspeed" in word for word in words[:3]):
            own = next((i for i, word in enumerate(words) if word.endswith("main.py")), len(words))
            commands.append(words[:own])
        process = int((stat_fields(process) or ["", "0"])[1])
    return commands


def _fitting_memory(config: Config) -> int:
    """Return how many ranks fit into half of the free memory."""
    model = config.model
    if model.init:
        parameters = sum(file.stat().st_size for file in Path(model.init).glob("*.safetensors")) / 4
    else:
        vocabulary = config.data.prepare.vocabulary
        parameters = model.hidden_size * (12 * model.layers * model.hidden_size + vocabulary)
    return processes_that_fit(parameters, _BYTES_OF_A_RANK)


def _end_with_any(others: Sequence[subprocess.Popen]) -> None:
    """End this process soon after another rank has failed: it would wait for it in a collective."""
    while True:
        time.sleep(0.5)
        if ended := next((rank for rank in others if rank.poll()), None):
            time.sleep(_SECONDS_TO_EXPLAIN)  # mostly this rank meets the same error, or hears of it
            print(f"error: a rank ended with status {ended.returncode}", file=sys.stderr, flush=True)
            os._exit(1)
        if all(rank.poll() == 0 for rank in others):
            return


def _wait_for_end(others: Sequence[subprocess.Popen]) -> None:
    end = time.monotonic() + _SECONDS_TO_END
    for rank in others:
        try:
            rank.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()

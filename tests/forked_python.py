"""Python processes that begin with the project imported: one process imports it, the others are its forks.

The import takes five seconds, most of a run of ten tiny steps.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

IMPORTS = (
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.engine",
    "deepspeed.runtime.zero.muon.muon_optimizer",  # DeepSpeed's choice of optimizers imports torch's compiler
    "deepspeed.runtime.zero.stage_1_and_2",
    "pretrain.prepare.run",
    "pretrain.run",
    "tensorboard.compat.proto.event_pb2",
    "torch.utils.tensorboard",
    "transformers.models.bert.modeling_bert",
    "transformers.models.roberta.modeling_roberta",
    "webdataset",
)
_PR_SET_CHILD_SUBREAPER = 36  # prctl.h
_SETS_VARIABLES = "pretrain.common.environment"
_popen = subprocess.Popen
_one_at_a_time = threading.Lock()


class ForkedPython(subprocess.Popen):
    """`Popen([sys.executable, *words], stdout=PIPE, text=True, start_new_session=True)` as a fork.

    It is a child of this process like any other. Variables that libraries read at their import come too late.

    Args:
        words: a script, `-m` and a module, or `-c` and code; and their arguments.
        environment: its variables, instead of this process's.
        folder: where it starts; None: where this process is.
        options: others of Popen. Its standard input is empty, and `preexec_fn` is left out.
    """

    def __init__(
        self, words: list[str], environment: dict[str, str], folder: Path | None = None, **options: Any
    ) -> None:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        super().__init__(words, env=environment, cwd=folder, **streams | options)

    def _execute_child(self, words, executable, preexec_fn, close_fds, pass_fds, cwd, env, *others) -> None:
        """Take the place of Popen's fork and exec."""
        pipes = others[3:9]
        outputs = [own if own != -1 else at for own, at in ((pipes[3], 1), (pipes[5], 2))]
        words = list(map(str, words))
        task = json.dumps({"words": words, "folder": str(cwd or os.getcwd()), "environment": env})
        with _one_at_a_time, _parent_of_orphans():
            server = _server()
            socket.send_fds(server, [task.encode()], outputs)
            answer = server.recv(64)
        if not answer:
            raise RuntimeError("the process that forks others has ended")
        self.pid = int(answer)
        self._child_created = True
        self._close_pipe_fds(*pipes)


@contextmanager
def forked_children() -> Iterator[None]:
    """Let the children of this process that are Python's be forks, for a command that is called in it, starts
    others, and may set handlers of signals. They do not learn of this process's end."""
    handlers = {
        number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    }
    subprocess.Popen = _Starter
    try:
        yield
    finally:
        subprocess.Popen = _popen
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _Starter(_popen):
    def __new__(cls, words, *, env=None, cwd=None, **options):
        if isinstance(words, str) or words[0] != sys.executable:
            return _popen(words, env=env, cwd=cwd, **options)
        streams = {"stdout": None, "stderr": None, "text": None}
        return ForkedPython(words[1:], dict(os.environ if env is None else env), cwd, **streams | options)


def run_python(
    words: list[str], environment: dict[str, str], folder: Path | None = None, timeout: float = 960
) -> subprocess.CompletedProcess:
    """Return what `subprocess.run([sys.executable, *words], capture_output=True, text=True)` does."""
    with ForkedPython(words, environment, folder, stderr=subprocess.PIPE) as process:
        out, errors = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(words, process.returncode, out, errors)


@contextmanager
def _parent_of_orphans() -> Iterator[None]:
    """Become the parent of descendants whose own parent ends."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0)


@cache
def _server() -> socket.socket:
    """Start the process that imports and forks; it ends when this process does."""
    ours, its = socket.socketpair(type=socket.SOCK_SEQPACKET)
    words = [sys.executable, __file__, str(its.fileno())]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    _popen(words, env=environment, stdin=subprocess.DEVNULL, pass_fds=[its.fileno()])
    its.close()
    return ours


def _serve(server: socket.socket) -> list[str] | None:
    """Import, then fork for each task; return a task's words in its fork, and None here at the end."""
    importlib.import_module(_SETS_VARIABLES).choose_accelerator()
    for name in IMPORTS:
        importlib.import_module(name)
    _warm_up()
    gc.collect()
    gc.freeze()
    while True:
        message, outputs, _, _ = socket.recv_fds(server, 2**20, 2)
        if not message:
            return None
        read_end, write_end = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                for descriptor in (server.fileno(), read_end, write_end):
                    os.close(descriptor)
                server.detach()
                return _become(json.loads(message), outputs)
            os.write(write_end, str(child).encode())
            os._exit(0)
        os.waitpid(between, 0)  # now its child is the starter's
        server.send(os.read(read_end, 64))
        for descriptor in (*outputs, read_end, write_end):
            os.close(descriptor)


def _warm_up() -> None:
    """Do what each run would: compile the library's patterns of names, measure this machine's peak."""
    import torch
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    from pretrain.start import summary

    get_checkpoint_conversion_mapping("bert")
    summary.measure_peak_flops = cache(summary.measure_peak_flops)
    summary.measure_peak_flops(torch.device("cpu"), torch.float32)


def _become(task: dict, outputs: list[int]) -> list[str]:
    """Take a task's session, outputs, folder and variables; return its words."""
    os.setsid()
    for output, descriptor in zip(outputs, (1, 2), strict=True):
        os.dup2(output, descriptor)
        os.close(output)
    os.chdir(task["folder"])
    os.environ.clear()
    os.environ.update(task["environment"])
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)
    del sys.modules[_SETS_VARIABLES]  # its importer sets them again
    sys.path[1:1] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return task["words"]


def _run(words: list[str]) -> None:
    """Run a script, a module or code as Python's command does."""
    if words[0] == "-c":
        sys.path[0], sys.argv = "", ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    elif words[0] == "-m":
        sys.path[0], sys.argv = os.getcwd(), words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    _words = _serve(socket.socket(fileno=int(sys.argv[1])))
    if _words is not None:
        _run(_words)

"""Real runs of the command on tiny data, in processes of their own."""

import gc
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from forked_python import ForkedPython

ROOT = Path(__file__).resolve().parents[2]
TINY = {
    "model.layers": 2,
    "model.hidden_size": 32,
    "model.heads": 2,
    "model.max_positions": 64,
    "model.pooling": "mean",
    "train.steps": 10,
    "train.global_batch": 16,
    "train.warmup_steps": 2,
    "train.log_every": 1,
    "train.precision": "fp32",
    "train.lr": "1e-3",
    "train.micro_batch_tokens": 256,
    "data.lanes": 4,
    "data.workers": 1,
    "evaluate.every": 4,
    "evaluate.heldout_sequences": 24,
    "evaluate.partners": 24,
    "checkpoint.every": 3,
    "train.threads": 1,
}

NOUNS = (
    "river stone engine garden letter teacher window planet market soldier winter bridge music forest doctor"
)
VERBS = (
    "carries finds breaks follows paints remembers builds opens answers watches moves teaches leaves holds"
)
ADJECTIVES = (
    "old green quiet broken narrow famous distant heavy simple silver early foreign public bitter gentle"
)


def preparation_of(corpus: Path, out: Path) -> list[str]:
    """Return the command line that prepares a small corpus for TINY."""
    flags = [
        "--vocabulary",
        "512",
        "--max-length",
        "48",
        "--heldout",
        "0.05",
        "--chunk-tokens",
        "2048",
        "--progress",
        "false",
    ]
    return [sys.executable, "-m", "pretrain.prepare", "--source", str(corpus), "--out", str(out), *flags]


def write_corpus(path: Path, documents: int = 300, seed: int = 0) -> Path:
    """A text file of made-up prose, a document a paragraph; every sentence is different."""
    rng = random.Random(seed)
    nouns, verbs, things = NOUNS.split(), VERBS.split(), ADJECTIVES.split()

    def sentence():
        words = [
            f"The {rng.choice(things)} {rng.choice(nouns)} {rng.choice(verbs)} the {rng.choice(things)} "
            f"{rng.choice(nouns)}"
        ]
        for _ in range(rng.randrange(3)):
            words.append(
                f"and the {rng.choice(nouns)} {rng.choice(verbs)} a {rng.choice(things)} {rng.choice(nouns)}"
            )
        return " ".join(words) + "."

    path.write_text(
        "\n\n".join(" ".join(sentence() for _ in range(rng.randrange(3, 9))) for _ in range(documents)) + "\n"
    )
    return path


def command(data: Path, run: Path, **flags) -> list[str]:
    """The words of a training command, without the launcher."""
    settings = TINY | {key.replace("__", "."): value for key, value in flags.items()}
    words = [str(ROOT / "pretrain" / "main.py"), "--data", str(data), "--run", str(run)]
    return words + [f"--{key}={value}" for key, value in settings.items() if value is not None]


def environment(**more: str) -> dict[str, str]:
    """The environment of a process of one thread that finds this project and no benchmarks."""
    inherited = {key: value for key, value in os.environ.items() if key != "CLEAR_DATA"}
    return inherited | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | more


def free_port() -> int:
    """Return a port on which nothing listens, and which the system gives to no connection by itself: until
    the ranks have come to it, others on this machine connect."""
    first, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", random.SystemRandom().randrange(10_000, first) if first > 10_000 else 0))
            return probe.getsockname()[1]


def start_rank(words: list[str], rank: int, ranks: int, port: object, **more: str) -> subprocess.Popen:
    """Start a process of a command as a rank of so many, leading a process group of its own."""
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return ForkedPython(words, environment(**variables, **more))


def start(words: list[str], ranks: int = 1, **more: str) -> list[subprocess.Popen]:
    """Start `ranks` processes of a command. more: environment variables."""
    port = free_port()
    return [start_rank(words, rank, ranks, port, **more) for rank in range(ranks)]


def fork(action: Callable[[], int | None]) -> int:
    """Start a child that does something and then ends, with the status that this returns (None: 0; an error:
    1), and never goes on with the tests; return its process id."""
    child = os.fork()
    if child == 0:
        gc.freeze()  # a process group in the parent's garbage waits for threads that are not here, or aborts
        status = 1
        try:
            status = action() or 0
        finally:
            os._exit(status)
    return child


def status_of(child: int) -> int:
    """Wait for a child's end; return its exit status, or the number of its signal, below 0."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


BUSY = 4  # how much longer than on a quiet machine: several tests start processes side by side


def outputs_of(processes: list[subprocess.Popen], timeout: int) -> list[str]:
    """What processes print until they end, read side by side: a rank whose pipe is full waits, and the others
    wait for it."""
    with ThreadPoolExecutor(len(processes)) as pool:
        return list(pool.map(lambda process: process.communicate(timeout=BUSY * timeout)[0], processes))


def finish(processes: list[subprocess.Popen], expect: int = 0, timeout: int = 240) -> str:
    """Wait for the end; returns rank 0's output."""
    outputs = outputs_of(processes, timeout)
    assert [p.returncode for p in processes] == [expect] * len(processes), "\n".join(
        o[-3000:] for o in outputs
    )
    return outputs[0]


def kill(processes: list[subprocess.Popen]) -> None:
    """SIGKILL everything, workers included."""
    for process in processes:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for(
    condition, processes: list[subprocess.Popen], timeout: float = 120, pause: float = 0.002
) -> None:
    """Poll until `condition()`, while the processes live."""
    end = time.monotonic() + BUSY * timeout
    while not condition():
        dead = [p for p in processes if p.poll() is not None]
        assert not dead, f"ended early with {dead[0].returncode}: {dead[0].communicate()[0][-3000:]}"
        assert time.monotonic() < end, "timed out"
        time.sleep(pause)


def paths_in(folder: Path, pattern: str) -> list[Path]:
    """The paths that match a pattern in a folder where others make and remove some: `glob` itself fails on a
    folder that it has seen and does not find again."""
    while True:
        with suppress(FileNotFoundError):
            return sorted(folder.glob(pattern))


def records(run: Path) -> list[dict]:
    """All whole records of metrics.jsonl."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}\n")]


OF_THE_MACHINE = {
    "wall_time",
    "seconds",
    "time",
    "memory",
    "tokens_per_second",
    "sequences_per_second",
    "mfu",
    "hfu",
    "eta_seconds",
    "slowest_rank",
    "link",
}


def reproducible_records(run: Path) -> list[dict]:
    """All whole records of metrics.jsonl but those of starts, without what depends on the machine."""
    rows = [row for row in records(run) if "config_sha256" not in row]
    return [{key: value for key, value in row.items() if key not in OF_THE_MACHINE} for row in rows]


def curve(run: Path) -> dict[int, dict]:
    """step -> losses, gradient norm, hashes of batches and evaluation, exactly as written."""
    result: dict[int, dict] = {}
    for record in records(run):
        row = result.setdefault(record["step"], {})
        row |= {
            key: record[key]
            for key in ("loss", "gradient_norm", "evaluation", "lr", "tokens", "ledger")
            if key in record
        }
    return result

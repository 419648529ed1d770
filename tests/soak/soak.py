"""Train for an hour, or through many requeues, and judge whether memory, descriptors and files stay flat.

    python tests/soak/soak.py --minutes 60 [--out DIR] [--data DIR] [--bound MB/HOUR] [-- FLAGS OF TRAINING]
    python tests/soak/soak.py --requeues 20 [--out DIR]

Two ranks on CPUs train a small model, with loader workers, background checkpoints of which three are kept,
evaluations (STS-B dev, too, where CLEAR_DATA names the benchmarks and there are no requeues) and the best
export on the way. Every process is sampled from outside. --data: a prepared folder; without it a small one is
made of made-up prose.

With --requeues, the ranks are asked to stop as Slurm asks them, SIGUSR1 and SIGTERM in turn, and start again
with --resume auto. Starts are compared with each other. Then an unbroken run trains as many steps, and must
have the same losses.

DIR gets processes.tsv, run.tsv, soak.png, report.txt and the output of the ranks. The exit status is 1 if a
series fails. `soak_judge` says how they are judged.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pretrain"))

from run_helpers import command, curve, environment, free_port, preparation_of, write_corpus
from soak_judge import Judgement, judge_counts, judge_memory, judge_peaks
from soak_samples import Sampler, count_files, write_tables

from pretrain.common.shutdown import EXIT_CODES, REQUEUE, TERMINATE

ROOT = Path(__file__).resolve().parents[2]
RANKS, KEEP = 2, 3
MEMORY = ("rss", "anonymous")
"""What is judged. PSS and USS move when another program maps, or leaves, the same libraries, and when one of
two processes that share a page since a fork writes it, which adds no memory to either."""
COUNTS = ("descriptors", "threads")
COUNTS_OF_RUN = (
    "processes",
    "zombies",
    "shared_entries",
    "temporary_entries",
    "hidden_entries",
)
COUNTS_OF_FILES = ("run_files", "checkpoints")
"""Judged from where as many checkpoints are there as are kept."""
PEAK_NOISE = 0.04
"""Share of its peak memory by which a start may differ from another."""
SETTINGS = {
    "train__steps": 10_000_000,
    "train__log_every": 20,
    "evaluate__every": 300,
    "checkpoint__every": 100,
    "checkpoint__keep": KEEP,
    "aug": "del-span,reorder",
}
SHORT = 10
"""Minutes below which checkpoints and evaluations come more often, so that there are several."""
OF_SHORT = {"evaluate__every": 30, "checkpoint__every": 8}
OF_REQUEUES = {"train__log_every": 1, "evaluate__every": 10, "checkpoint__every": 4}


class Start:
    """The ranks of one start, as Slurm's script starts them."""

    def __init__(self, words: list[str], out: Path, temporary: Path, benchmarks: str | None = None) -> None:
        """
        Args:
            temporary: their TMPDIR.
            benchmarks: their CLEAR_DATA.
        """
        port = free_port()
        self.logs = [out / f"rank-{rank}.log" for rank in range(RANKS)]
        self.processes = []
        for rank, log in enumerate(self.logs):
            variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS}
            variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TMPDIR": temporary}
            given = {name: str(value) for name, value in variables.items()}
            given |= {"CLEAR_DATA": benchmarks} if benchmarks else {}
            with log.open("ab") as file:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, *words],
                        env=environment(**given),
                        stdin=subprocess.DEVNULL,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def require_life(self) -> None:
        """Raise: RuntimeError, with its last lines, where a rank has ended."""
        for process, log in zip(self.processes, self.logs, strict=True):
            if process.poll() is not None:
                raise RuntimeError(f"{log} ended with {process.returncode}:\n{log.read_text()[-3000:]}")

    def stop(self, by: signal.Signals) -> list[int]:
        """Signal the ranks, and for SIGTERM also their children, as a preemption does; return statuses."""
        for pid in self.pids:
            (os.killpg if by == signal.SIGTERM else os.kill)(pid, by)
        return [process.wait(600) for process in self.processes]

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


class Step:
    """The last step in metrics.jsonl, read from where the last look ended."""

    def __init__(self, run: Path) -> None:
        self.path, self.place, self.last = run / "metrics.jsonl", 0, 0

    def __call__(self) -> int:
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self.place)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self.place += len(whole)
            for line in whole.splitlines():
                if line.startswith(b'{"step": '):
                    self.last = int(line[9:].split(b",")[0])
        return self.last


def watch(
    start: Start, sampler: Sampler, number: int, step: Step, interval: float, until: Callable[[], bool]
) -> None:
    """Sample until `until()`, from the first step on that this start adds to the metrics."""
    before = step()
    while step() <= max(before, 1):
        start.require_life()
        time.sleep(0.1)
    while not until():
        start.require_life()
        sampler.take(start.pids, number, step())
        time.sleep(interval)


def soak(
    data: Path, out: Path, minutes: float, interval: float, bound: float, words: list[str]
) -> list[Judgement]:
    """Train for so many minutes after the first step; return the judgements, warm-up (a quarter) left out."""
    run, temporary = fresh(out)
    sampler, step = Sampler(run, temporary), Step(run)
    flags = SETTINGS if minutes >= SHORT else SETTINGS | OF_SHORT
    start = Start([*command(data, run, **flags), *words], out, temporary, os.environ.get("CLEAR_DATA"))
    ends: list[float] = []

    def over() -> bool:
        ends.append(time.monotonic())
        return ends[-1] - ends[0] > 60 * minutes

    try:
        watch(start, sampler, 1, step, interval, over)
        statuses = start.stop(signal.SIGUSR1)
    finally:
        start.kill()
        write_tables(sampler.samples, out)
    judgements = judge_soak(sampler, bound)
    judgements.append(judge_exit(1, statuses, REQUEUE))
    judgements.append(judge_left("after the end", sampler.left_behind(start.pids)))
    draw(sampler, out / "soak.png")
    return judgements


def judge_soak(sampler: Sampler, bound: float) -> list[Judgement]:
    """Judge the series of one start."""
    samples = sampler.samples[len(sampler.samples) // 4 :]
    seen: dict[str, list] = defaultdict(list)
    for sample in samples:
        for role in sample.processes:
            seen[role].append(sample)
    judgements = []
    for role, where in sorted(seen.items()):
        if len(where) < 0.9 * len(samples):
            continue  # a process that comes and goes: the number of processes is judged
        seconds = [sample.seconds for sample in where]
        for name in MEMORY:
            values = [sample.processes[role][name] for sample in where]
            judgements.append(judge_memory(f"{role}, {name}", seconds, values, bound))
        for name in COUNTS:
            judgements.append(
                judge_counts(f"{role}, {name}", [sample.processes[role][name] for sample in where])
            )
    whole = [sum(values["rss"] for values in sample.processes.values()) for sample in samples]
    seconds = [sample.seconds for sample in samples]
    judgements.append(judge_memory("all processes, rss", seconds, whole, bound * RANKS))
    for name in COUNTS_OF_RUN:
        judgements.append(judge_counts(name, [sample.run[name] for sample in samples]))
    filled = next((i for i, sample in enumerate(samples) if sample.run["checkpoints"] >= KEEP), len(samples))
    for name in COUNTS_OF_FILES:
        judgements.append(judge_counts(name, [sample.run[name] for sample in samples[filled:]]))
    judgements.append(judge_retention(max(sample.run["checkpoints"] for sample in samples)))
    return judgements


def requeue(data: Path, out: Path, times: int, steps: int, interval: float, words: list[str]):
    """Train so many steps, be stopped and start again, `times` times; return the judgements."""
    run, temporary = fresh(out)
    sampler, step = Sampler(run, temporary), Step(run)
    judgements, files, sizes = [], [], []
    peaks: dict[str, list[float]] = defaultdict(list)
    counts: dict[str, list[float]] = defaultdict(list)
    flags = SETTINGS | OF_REQUEUES
    for number in range(1, times + 2):
        start = Start([*command(data, run, **flags, resume="auto"), *words], out, temporary)
        try:
            began = step()
            watch(start, sampler, number, step, interval, lambda: step() >= began + steps)  # noqa: B023
            asked = REQUEUE if number % 2 else TERMINATE
            statuses = start.stop(signal.SIGUSR1 if asked == REQUEUE else signal.SIGTERM)
        finally:
            start.kill()
            write_tables(sampler.samples, out)
        judgements.append(judge_exit(number, statuses, asked))
        judgements.append(judge_left(f"after start {number}", sampler.left_behind(start.pids)))
        samples = [sample for sample in sampler.samples if sample.start == number]
        for role in ("rank 0", "rank 1"):
            of_role = [sample.processes[role] for sample in samples if role in sample.processes]
            peaks[role].append(max(values["peak"] for values in of_role))
            for name in COUNTS:
                counts[f"{role}, {name}"].append(min(values[name] for values in of_role))
        counts["processes"].append(min(sample.run["processes"] for sample in samples))
        kept = [count_files(run / name) for name in ("checkpoints", "best", "tokenizer")]
        files.append(sum(count for count, _ in kept))
        sizes.append(sum(size for _, size in kept) / (1 << 20))
    judgements += [judge_peaks(f"{role}, peak", values, PEAK_NOISE) for role, values in peaks.items()]
    filled = KEEP + 1  # starts until as many checkpoints are there as are kept
    judgements += [judge_counts(f"{name} of starts", values[1:]) for name, values in counts.items()]
    judgements.append(judge_counts("files of checkpoints and best/ after starts", files[filled:]))
    judgements.append(judge_peaks("MB of checkpoints and best/ after starts", sizes[filled:], PEAK_NOISE))
    judgements.append(judge_retention(max(sample.run["checkpoints"] for sample in sampler.samples)))
    judgements.append(compare_unbroken(data, out, run, temporary, step(), words))
    draw(sampler, out / "soak.png")
    return judgements


def compare_unbroken(
    data: Path, out: Path, run: Path, temporary: Path, steps: int, words: list[str]
) -> Judgement:
    """Train as many steps without a stop; the losses, norms, evaluations and hashes must be equal."""
    unbroken = out / "unbroken"
    step = Step(unbroken)
    start = Start(command(data, unbroken, **SETTINGS | OF_REQUEUES) + words, out, temporary)
    try:
        while step() < steps:
            start.require_life()
            time.sleep(0.2)
        start.stop(signal.SIGUSR1)
    finally:
        start.kill()
    ours, theirs = curve(run), curve(unbroken)
    different = [number for number in range(1, steps) if ours.get(number) != theirs.get(number)]
    says = f"{steps - 1} steps equal" if not different else f"steps {different[:5]} differ"
    return Judgement("the unbroken run", not different, says)


def judge_exit(number: int, statuses: list[int], asked: int) -> Judgement:
    expected = EXIT_CODES[asked]
    return Judgement(
        f"exit of start {number}", statuses == [expected] * RANKS, f"{statuses}, expected {expected}"
    )


def judge_left(when: str, left: dict[str, list[str]]) -> Judgement:
    says = "; ".join(f"{what}: {', '.join(names[:5])}" for what, names in left.items())
    return Judgement(f"left {when}", not left, says or "nothing")


def judge_retention(most: float) -> Judgement:
    """While one is written, the oldest may be there still."""
    return Judgement("checkpoints kept", most <= KEEP + 1, f"at most {most:g} at a time, {KEEP} are kept")


def fresh(out: Path) -> tuple[Path, Path]:
    """Return the run folder, and the folder for temporary files, both new."""
    for name in ("run", "unbroken", "tmp"):
        shutil.rmtree(out / name, ignore_errors=True)
    (out / "tmp").mkdir(parents=True)
    for log in out.glob("rank-*.log"):
        log.unlink()
    return out / "run", out / "tmp"


def prepared(out: Path, documents: int) -> Path:
    """Return a folder of made-up prose, prepared; made once."""
    if not (out / "data" / "manifest.json").exists():
        corpus = write_corpus(out / "corpus.txt", documents)
        words = [sys.executable, *preparation_of(corpus, out / "data")[1:]]
        subprocess.run(words, env=environment(), cwd=ROOT, check=True)
    return out / "data"


def draw(sampler: Sampler, path: Path) -> None:
    """Draw memory and counts of every process over the minutes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(4, 1, figsize=(9, 12), sharex=True, layout="constrained")
    samples = sampler.samples
    often = defaultdict(int)
    for sample in samples:
        for role in sample.processes:
            often[role] += 1
    for role in sorted(role for role, count in often.items() if count > len(samples) / 20):
        minutes = [sample.seconds / 60 for sample in samples if role in sample.processes]
        for panel, name in zip(panels, ("pss", "descriptors", "threads")):
            values = [sample.processes[role][name] for sample in samples if role in sample.processes]
            panel.plot(minutes, values, ".", markersize=2, label=role)
    for name in ("processes", "shared_entries", "temporary_entries", "checkpoints"):
        minutes = [sample.seconds / 60 for sample in samples]
        panels[3].plot(minutes, [sample.run[name] for sample in samples], ".", markersize=2, label=name)
    for panel, label in zip(panels, ("PSS, MB", "descriptors", "threads", "count")):
        panel.set_ylabel(label)
        panel.set_ylim(bottom=0)
        panel.legend(fontsize=7, markerscale=4)
    panels[3].set_xlabel("minutes")
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--requeues", type=int, default=0)
    parser.add_argument("--steps", type=int, default=15, help="of each start, with --requeues")
    parser.add_argument("--interval", type=float, default=5, help="seconds between samples")
    parser.add_argument("--bound", type=float, default=2.5, help="MB/hour by which a process may grow")
    parser.add_argument("--documents", type=int, default=3000, help="of made-up prose")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir(), "soak"))
    parser.add_argument("words", nargs="*", help="flags of training, after --")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of what ends the ranks
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    data = options.data or prepared(out, options.documents)
    if options.requeues:
        judgements = requeue(
            data, out, options.requeues, options.steps, min(options.interval, 0.5), options.words
        )
    else:
        judgements = soak(data, out, options.minutes, options.interval, options.bound, options.words)
    report = "\n".join(map(str, judgements)) + "\n"
    (out / "report.txt").write_text(report)
    print(report, end="")
    return int(not all(judgement.sound for judgement in judgements))


if __name__ == "__main__":
    sys.exit(main())

"""The board: the best sentence encoders from raw text within a time, which anybody can execute again.

    clearly record start cpu2-10m --recipe FILE --data SHARDS --eval-data DIR --out runs/mine
    clearly record submit runs/mine
    clearly record check docs/records/NAME
    clearly record check docs/records/NAME --run runs/mine/seed-1 --replay 5 --eval-data DIR

`start` trains a recipe once for each seed within the track's time, and scores it; the same command continues.
`submit` refuses what breaks a rule or does not beat the standing record, and else writes it into the board.
`check` does again what a record says. docs/records.md has the rules and what a check does not prove.
"""

from pathlib import Path

from pretrain.benchmarks.files import known_name
from pretrain.commands.record.tracks import TRACKS
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder
from pretrain.common.folder_lock import folder_lock
from pretrain.common.processes import take_ends_for_interrupt
from pretrain.common.run_folder import require_run


def start(
    track: str,
    *,
    recipe: Path,
    data: Path,
    eval_data: Path,
    out: Path,
    seeds: tuple[cli.Natural, ...] = (1, 2, 3),
    text: str = "",
    derive: str = "",
    score: bool = True,
) -> int:
    """Train a recipe within a track's time, once for each seed, and score it.

    Args:
        track: cpu2-1m, cpu2-10m, cpu2-60m (two cores), gpu-1m, gpu-10m (one GPU), static (a table of
            vectors, two cores, ten minutes) or cpu2-speed (fewest seconds to 60 over seven STS tasks).
        recipe: all that is not the default's, the preparation included.
        data: prepared data; made of --text if it is not there.
        eval_data: folder of the benchmarks, and of the held-out text.
        out: folder for the runs and their scores; what is done there is kept.
        seeds: three or more for a record.
        text: the corpus, files between commas: of data that are not there, or whose files were moved.
        derive: what is entered is made of the encoder, within the time, by flags of `clearly export` that are
            fitted on the prepared data, between commas: whiten=0; of a table static=input,whiten=0.
        score: false leaves the scores, and a look at the text of prepared data, to the same command on
            another machine, without --score.
    """
    from pretrain.commands.record.training import begin, do_seeds

    track = known_name(track, tuple(TRACKS), "track")
    if not recipe.is_file():
        raise UserError(f"--recipe {recipe}: there is no such file")
    if len(set(seeds)) < len(seeds) or not seeds:
        raise UserError("--seeds: give different numbers, as 1,2,3")
    make_folder(out)
    with folder_lock(out):
        begin(track, recipe, data, out, text, derive, seeds, score)
        do_seeds(TRACKS[track], seeds, data, eval_data, out, score)
    print(f"next: clearly record submit {out}" if score else "next: the same command without --score")
    return 0


def submit(folder: Path, *, board: Path = Path("docs/records")) -> int:
    """Enter what `start` has left in a folder into the board, if it keeps the rules and beats the record.

    Args:
        folder: --out of `start`.
        board: the folder of the records; the table is in the page of the same name beside it.
    """
    from pretrain.commands.record.board import enter

    place = enter(folder, board)
    print(f"{place} is the record of its track; {board.with_suffix('.md')} has it. Commit both")
    return 0


def check(
    record: Path,
    *,
    run: Path | None = None,
    replay: cli.Natural = 0,
    text: str = "",
    eval_data: str = "",
    data: str = "",
) -> int:
    """Compare a record with itself, and with a run and a text if they are given.

    Args:
        record: its folder.
        run: of a seed: the record's own, or one that its command has trained again.
        replay: train N stretches of the run again (`clearly verify --replay`).
        text: the corpus, to prepare again.
        eval_data: folder of the benchmarks, to score the run again.
        data: the run's data, if they were moved.
    """
    from pretrain.commands.record import checking

    if run is None and (replay or eval_data or data):
        raise UserError("--replay, --eval-data and --data are of a run: name it by --run")
    if run is not None:
        require_run(run)
    return 0 if checking.check(record, run, replay, text, eval_data, data) else 1


if __name__ == "__main__":
    take_ends_for_interrupt()
    cli.run(start=start, submit=submit, check=check, outlives_readers=True)

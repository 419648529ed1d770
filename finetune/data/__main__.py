"""Check and complete the folder of evaluation data: `--eval-data DIR`, or the environment's CLEAR_DATA.

    clearly benchmarks check DIR                               which sets are there
    clearly benchmarks fetch GLUE/RTE DIR [--source FOLDER]    get one from the hub, or a copy of it

docs/evaluation.md says what lies where. Each evaluation declares its own sets; `finetune.data.catalogue`
gathers them.
"""

import sys
from pathlib import Path

from finetune.flags import EvalData
from pretrain.benchmarks.files import data_root
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import require_writable


def check(eval_data: EvalData = "", *, sets: str = "") -> int:
    """Print for every set whether its files are there, and where to get those that are not.

    The exit status is 0 when all are complete, 1 otherwise.

    Args:
        sets: only these: groups (SentEval, probing, GLUE, clustering, intents, ANLI, NLI, zh) or sets
            (GLUE/RTE), by commas.
    """
    from finetune.data import catalogue

    root, chosen = data_root(eval_data), catalogue.choose(sets)
    width, states = max(len(one.name) for one in chosen), [catalogue.check(one, root)[0] for one in chosen]
    for one in chosen:
        print(catalogue.report(one, root, width))
    print(", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)))
    return 0 if set(states) == {"complete"} else 1


def fetch(name: str, eval_data: EvalData, *, source: str = "", replace: bool = False) -> int:
    """Get a set from the hub, or from a copy of it, and write it in the folder's layout.

    Args:
        name: the set, as GLUE/RTE.
        source: another name on the hub, or a folder with the set's parquet, jsonl or csv files.
        replace: also write files that are there; they stay otherwise.
    """
    from finetune.data import catalogue

    require_writable(eval_data, "EVAL_DATA")
    root = Path(eval_data)
    chosen = catalogue.choose(name)
    if len(chosen) != 1:
        names = ", ".join(one.name for one in chosen)
        raise UserError(f"{name!r} is {len(chosen)} sets; fetch them one by one: {names}")
    for line in catalogue.fetch(chosen[0].name, root, source, replace):
        print(line, file=sys.stderr)
    print(catalogue.report(chosen[0], root, len(chosen[0].name)))
    return 0


if __name__ == "__main__":
    cli.run(check=check, fetch=fetch)

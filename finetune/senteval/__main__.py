"""Run SentEval (Conneau and Kiela 2018) for any encoder: the same numbers, in a fraction of the time."""

import sys
from functools import partial
from typing import Literal

from finetune.encoders.models import open_model
from finetune.flags import Model
from finetune.frozen import FrozenFlags
from finetune.results import run_and_write
from pretrain.common import cli


def main(
    model: Model,
    *,
    protocol: Literal["simcse", "senteval", "clear"] = "simcse",
    setting: Literal["test", "dev"] = "test",
    seed: cli.Natural = 1111,
    flags: FrozenFlags,
) -> int:
    """Run SentEval's similarity, transfer, relatedness and probing tasks on frozen sentence vectors.

    Tasks are also groups: sts, transfer, probing, all; by default what the protocol's papers print.

    Args:
        protocol: simcse (Spearman over all pairs of a task), senteval (Pearson, mean over subsets) or clear
            (as senteval, with SICK-R and STS-B supervised). All six aggregations are in the result file.
        setting: test (10 folds, Adam; what papers report) or dev (5 folds, RMSprop, fewer passes; SimCSE's
            during training).
        seed: seed of the classifiers' weights and of the order of examples.
    """
    from finetune.senteval.evaluate import add_averages, choose_tasks, evaluate, read_tasks

    chosen, remarks = choose_tasks(flags.tasks, protocol, setting, flags.eval_data)
    for remark in remarks:
        print(f"note: {remark}", file=sys.stderr)
    read = read_tasks(chosen, flags.eval_data)  # before the model: a missing file should not cost the loading

    opened = open_model(model, flags.pooling, precision=flags.precision)
    work = partial(evaluate, data=read, protocol=protocol, setting=setting, seed=seed, remarks=remarks)
    return run_and_write(opened, flags.out, work, add_averages)


if __name__ == "__main__":
    cli.run(main)

"""`python -m finetune.senteval MODEL`: see `main`."""

import sys
from typing import Literal

from finetune.encoders.models import EmbeddingModel, open_model
from finetune.flags import EvalData, Model, Out, Pooling, VectorPrecision
from finetune.results import Evaluation, run_and_write
from pretrain.common import cli


def main(
    model: Model,
    *,
    tasks: str = "",
    protocol: Literal["simcse", "senteval", "clear"] = "simcse",
    setting: Literal["test", "dev"] = "test",
    pooling: Pooling = "",
    eval_data: EvalData = "",
    seed: cli.Natural = 1111,
    hidden: cli.Natural = 0,
    precision: VectorPrecision = "fp32",
    out: Out = "",
) -> int:
    """Run SentEval's similarity, transfer, relatedness and probing tasks on frozen sentence vectors.

    Args:
        tasks: names by commas, or sts, transfer, probing, all; without it, what the protocol's papers print.
        protocol: simcse (Spearman over all pairs of a task), senteval (Pearson, mean over subsets) or clear
            (as senteval, with SICK-R and STS-B supervised). All six aggregations are in the result file.
        setting: test (10 folds, Adam; what papers report) or dev (5 folds, RMSprop, fewer passes; SimCSE's
            during training).
        seed: seed of the classifiers' weights and of the order of examples.
        hidden: width of a hidden layer in the classifiers; 0: logistic regression.
    """
    from finetune.senteval.evaluate import add_averages, choose_tasks, evaluate, read_tasks

    chosen, remarks = choose_tasks(tasks, protocol, setting, eval_data)
    for remark in remarks:
        print(f"note: {remark}", file=sys.stderr)
    read = read_tasks(chosen, eval_data)  # before the model: a missing file should not cost the loading

    def with_remarks(opened: EmbeddingModel) -> Evaluation:
        result = evaluate(opened, read, protocol, setting, seed, hidden)
        result.notes += remarks
        return result

    return run_and_write(open_model(model, pooling, precision=precision), out, with_remarks, add_averages)


if __name__ == "__main__":
    cli.run(main)

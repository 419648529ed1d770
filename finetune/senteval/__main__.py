"""`python -m finetune.senteval MODEL`: see `main`."""

from __future__ import annotations

import sys

from finetune.encoders.models import open_model
from finetune.results import finish
from finetune.senteval.evaluate import PROTOCOLS, choose_tasks, evaluate, read_tasks
from finetune.senteval.protocol import SETTINGS
from pretrain.common.cli import as_count, require_writable, run
from pretrain.common.errors import UserError


def main(
    model: str,
    tasks: str = "",
    protocol: str = "simcse",
    setting: str = "test",
    pooling: str = "",
    data: str = "",
    seed: str = "1111",
    hidden: str = "0",
    out: str = "",
) -> int:
    """Similarity, transfer, relatedness and probing tasks of SentEval on frozen sentence vectors.

    Args:
        model: a run folder, an export, a Hugging Face or sentence-transformers folder or hub name, or
            file.py:function.
        tasks: names by commas, or sts, transfer, probing, all; not given: what the protocol's papers print.
        protocol: simcse (Spearman over all pairs of a task), senteval (Pearson, mean over subsets) or clear
            (as senteval, with SICK-R and STS-B supervised). All six aggregations are in the result file,
            whichever is the headline.
        setting: test (10 folds, Adam; what papers report) or dev (5 folds, RMSprop, fewer passes; SimCSE's
            during training).
        pooling: cls, mean, first-last, embedding-last or last-two; not given: the pooling that the model was
            trained for.
        data: folder that holds SentEval/; the environment's CLEAR_DATA when not given.
        seed: of the classifiers' weights and order of examples.
        hidden: width of a hidden layer in the classifiers; 0: logistic regression.
        out: folder for the result file; not given: RUN/report, or results/MODEL.
    """
    require_writable(out)
    for name, value, known in (("protocol", protocol, PROTOCOLS), ("setting", setting, SETTINGS)):
        if value not in known:
            raise UserError(f"--{name} {value!r}: choose one of {', '.join(known)}")
    numbers = as_count(seed, "seed"), as_count(hidden, "hidden")
    chosen, remarks = choose_tasks(tasks, protocol, setting, data)
    for remark in remarks:
        print(f"note: {remark}", file=sys.stderr)
    read = read_tasks(chosen, data)  # before the model: a missing file should not cost the loading
    opened = open_model(model, pooling)
    result = evaluate(opened, read, protocol, setting, *numbers)
    for remark in remarks:
        result.notes.append(remark)
    finish(result, opened, out)
    return 0


if __name__ == "__main__":
    run(main, positional=1)

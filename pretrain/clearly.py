"""The command `clearly`: each command of the project under one name.

`clearly train --data DIR` is `python -m pretrain.main --data DIR`: the process becomes that one.
"""

import os
import sys

from pretrain.common.error_output import print_error
from pretrain.common.errors import UserError
from pretrain.common.program import DISTRIBUTION, TYPED, own_version

COMMANDS = {
    "prepare": ("pretrain.prepare", "raw text in, a tokenizer and shuffled, de-duplicated shards out"),
    "train": ("pretrain.main", "pretrain or post-train an encoder, evaluate and export it"),
    "adapt": ("pretrain.commands.adapt", "continue an encoder on your own text, and compare with its start"),
    "inspect": ("pretrain.commands.inspect", "a training batch as the model will see it, decoded"),
    "augment": ("pretrain.commands.augment", "what augmentations do to sentences"),
    "plan": ("pretrain.commands.plan", "memory and time of a run, before it starts"),
    "mine": ("pretrain.commands.mine", "hard negatives for labelled pairs: triples to train on"),
    "sweep": ("pretrain.commands.sweep", "several runs and seeds, one table, with intervals"),
    "eval": ("finetune.evaluate", "an encoder by a suite of evaluations, within a budget of time"),
    "export": ("pretrain.export", "a run's encoder for transformers and sentence-transformers"),
    "compare": ("finetune.compare", "what differs between runs: recipes, curves, scores with intervals"),
    "search": ("finetune.search", "the sentences of a text that mean most nearly what a query means"),
    "convert": ("pretrain.commands.convert", "pickled weights of a model to safetensors"),
    "show": ("pretrain.commands.show", "one page on a run: curves, a batch, search before and after"),
    "verify": ("pretrain.commands.verify", "whether a run has read the data that it says, and who was in it"),
    "doctor": ("pretrain.commands.doctor", "what this machine has, what will fail on it, and what to do"),
    "report": ("finetune.report", "one page about runs and models, side by side"),
}
"""Word -> the module that `python -m` would start, and what it does."""


def main() -> None:
    """Become the command that the first word names."""
    words = sys.argv[1:]
    if not words or words[0] in ("help", "-h", "--help"):
        width = max(map(len, COMMANDS)) + 2
        listed = [f"  {word:{width}s}{about}" for word, (_, about) in COMMANDS.items()]
        print("\n".join(["usage: clearly COMMAND ..., each with its own --help", "", *listed]))
        return
    if words[0] == "--version":
        print(_version())
        return
    if words[0] not in COMMANDS:
        from pretrain.common.typed_values import nearest  # brings pydantic, which no other branch needs

        hint = nearest(words[0], COMMANDS)
        print_error(UserError(f"unknown command {words[0]!r}{hint} clearly --help lists the commands"))
        raise SystemExit(2)
    module, _ = COMMANDS[words[0]]
    os.environ[TYPED] = f"clearly {words[0]}"
    os.execv(sys.executable, [sys.executable, "-m", module, *words[1:]])


def _version() -> str:
    return f"{DISTRIBUTION} {own_version() or 'is not installed: it runs from its folder'}"


if __name__ == "__main__":
    main()

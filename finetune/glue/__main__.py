"""The command `clearly glue`: its parts are in `finetune.glue.command`."""

from finetune.glue.command import gather, glue, plan, train
from pretrain.common import cli

if __name__ == "__main__":
    cli.run(glue, plan=plan, train=train, gather=gather)

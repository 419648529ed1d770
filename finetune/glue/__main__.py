"""The command `clearly glue`.

Its parts are in `finetune.glue.command`: a process that computes runs beside this one must find them by name,
and a new interpreter does not import `__main__`.
"""

from finetune.glue.command import gather, glue, plan, train
from pretrain.common import cli

if __name__ == "__main__":
    cli.run(glue, plan=plan, train=train, gather=gather)

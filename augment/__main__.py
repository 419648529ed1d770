"""Be `clearly augment`: the command is in `pretrain/commands`, above the packages that it needs."""

import runpy

if __name__ == "__main__":
    runpy.run_module("pretrain.commands.augment", run_name="__main__", alter_sys=True)

"""The command `clearly`: each command of the project under one name.

`clearly train --data DIR` is `python -m pretrain.main --data DIR`: the process becomes that one.
"""

import os
import sys
from collections.abc import Sequence

from pretrain.common.error_output import print_error, print_whoever_reads, require_printed
from pretrain.common.errors import UserError
from pretrain.common.program import COMMANDS, own_version


def main() -> None:
    """Become the command that the first word names."""
    print_whoever_reads()
    try:
        _begin(sys.argv[1:])
        require_printed()
    except UserError as error:
        print_error(error)
        raise SystemExit(error.exit_status) from None


def _begin(words: Sequence[str]) -> None:
    if not words or words[0] in ("help", "-h", "--help"):
        width = max(map(len, COMMANDS)) + 2
        listed = [f"  {word:{width}s}{about}" for word, (_, about) in COMMANDS.items()]
        print("\n".join(["usage: clearly COMMAND ..., each with its own --help", "", *listed]))
        return
    if words[0] == "--version":
        print("clearly", own_version() or "is not installed: it runs from its folder")
        return
    if words[0] not in COMMANDS:
        from pretrain.common.typed_values import nearest  # brings pydantic, which no other branch needs

        hint = nearest(words[0], COMMANDS) or "."
        raise UserError(f"unknown command {words[0]!r}{hint} clearly --help lists the commands")
    module, _ = COMMANDS[words[0]]
    os.execv(sys.executable, [sys.executable, "-m", module, *words[1:]])


if __name__ == "__main__":
    main()

"""Run a step of a data recipe. Exit code 65: it refuses the text, so its work is to be forgotten.

All else that ends it (a full disk, a signal, an error of ours) has other codes.
"""

import sys
from collections.abc import Sequence
from importlib import import_module

from fairseq_ext.errors import Unfinished, UsageError

REFUSED = 65  # EX_DATAERR of sysexits.h


def main(arguments: Sequence[str] | None = None) -> None:
    module, *rest = sys.argv[1:] if arguments is None else arguments
    try:
        import_module(module).main(rest)
    except Unfinished:
        raise
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(REFUSED)


if __name__ == "__main__":
    main()

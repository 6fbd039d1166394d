"""`python -m tests.servers run -- COMMAND`: the command runs beside private servers, named in its environment.

`python -m tests.servers install` installs the missing programs through apt, where that is possible.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.servers import packages
from tests.servers.environment import started


def main(arguments: list[str]) -> int:
    """Exit status: the command's own, 1 when something could not be installed, 2 for wrong use."""
    match arguments:
        case ["install"]:
            for program in (missing := packages.install_missing()):
                print(f"{program} is not installed and could not be installed here", file=sys.stderr)
            return 1 if missing else 0
        case ["run", "--", *command] if command:
            with started() as servers:
                for sentence in servers.missing:
                    print(sentence, file=sys.stderr)
                return subprocess.run(command, env=os.environ | servers.variables, check=False).returncode
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

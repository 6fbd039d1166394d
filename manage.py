#!/usr/bin/env python3
"""Door for people: Django's command line for this project."""

import os
import sys


def main() -> None:
    """Run one management command; a wrong setting is told in one line, not in a traceback."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler_project.settings")
    from django.core.management import execute_from_command_line

    from tickwork.errors import ConfigurationError

    try:
        execute_from_command_line(sys.argv)
    except ConfigurationError as error:
        sys.exit(f"tickwork: {error}")


if __name__ == "__main__":
    main()

"""`manage.py millrace`: the command line of Millrace, for the app of a task backend."""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER, ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Run workers and inspect jobs, for example: manage.py millrace worker --slots 20"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--backend", default="default", help="Alias of the backend in TASKS (default: default).")
        parser.add_argument("arguments", nargs=REMAINDER, help="A command of Millrace, e.g. worker, queues or serve.")

    def handle(self, *args: Any, backend: str, arguments: list[str], **options: Any) -> None:
        from millrace.cli.root import run

        # Worker processes that are started from here (--processes) import the same modules.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [sys.path[0], os.environ.get("PYTHONPATH")]))
        code = run(["--app", f"millrace.contrib.django.current:{backend}", *(arguments or ["--help"])])
        if code:
            sys.exit(code)

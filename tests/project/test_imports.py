"""Who may import whom, and what `import millrace` may cost.

The contracts themselves stand in pyproject.toml, under [tool.importlinter].
"""

import ast
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OPTIONAL = (
    "airflow",
    "asyncpg",
    "boto3",
    "cronsim",
    "dagster",
    "hypothesis",
    "obstore",
    "opentelemetry",
    "watchfiles",
    "pandas",
    "prometheus_client",
    "psycopg",
    "pyarrow",
    "pyspark",
    "pytest",
    "redis",
    "rich",
    "sqlite3",
    "starlette",
    "typer",
    "uvicorn",
    "uvloop",
)
REPORT = """
import sys
before = set(sys.modules)
import millrace
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def test_the_import_contracts_hold():
    lint_imports = Path(sysconfig.get_path("scripts"), "lint-imports")

    done = subprocess.run([lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_importing_millrace_loads_no_optional_dependency(tmp_path):
    done = subprocess.run([sys.executable, "-c", REPORT], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "millrace" in loaded
    assert sorted(loaded & set(OPTIONAL)) == []


def test_the_domain_imports_nothing_from_outside_but_msgspec():  # E-01
    allowed = sys.stdlib_module_names | {"millrace", "msgspec"}
    allowed |= {"typing_extensions"}  # for type checkers only
    files = sorted((ROOT / "src/millrace/domain").rglob("*.py"))

    foreign = [
        f"{file.relative_to(ROOT)}: {module}"
        for file in files
        for module in imported(ast.parse(file.read_bytes()))
        if module not in allowed
    ]

    assert files
    assert foreign == []


def imported(tree: ast.Module) -> set[str]:
    """The top-level packages named by the absolute imports in a file."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def test_on_windows_the_import_says_what_to_do():
    program = "import sys; sys.platform = 'win32'; import millrace"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "ImportError: Millrace does not run on Windows" in done.stderr and "WSL" in done.stderr

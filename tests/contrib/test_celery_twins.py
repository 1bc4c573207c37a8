"""Three applications with Celery's API, run as processes; those with Millrace's own API, in examples/, are shorter."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import httpx
import pytest

from tests.cli.process import eventually
from tests.examples.program import EXAMPLES, Example
from tests.examples.test_frameworks import answers, poll
from tests.servers.ports import free_port

TWINS = Path(__file__).parent / "celery_twins"
NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@pytest.mark.slow
def test_fastapi(tmp_path: Path) -> None:
    example, port = Example("fastapi", tmp_path, TWINS), free_port()
    address = f"http://127.0.0.1:{port}"
    server = example.running("-m", "uvicorn", "shop:api", "--port", str(port))
    with server, example.running("-m", "millrace", "worker", "--app", "shop:queue"):
        eventually(answers(address))
        order = httpx.post(f"{address}/orders", params={"product": "tea"}).json()
        poll(f"{address}/orders/{order['order']}", {"product": "tea", "receipt": "Thank you for the tea."})
        assert httpx.get(f"{address}/orders/99").status_code == 404


@pytest.mark.slow
def test_flask(tmp_path: Path) -> None:
    example, port = Example("flask", tmp_path, TWINS), free_port()
    address = f"http://127.0.0.1:{port}"
    server = example.running("-m", "flask", "--app", "shop:flask_app", "run", "--port", str(port))
    with server, example.running("-m", "millrace", "worker", "--app", "shop:celery_app"):
        eventually(answers(address))
        order = httpx.post(f"{address}/orders", data={"product": "tea"}).json()
        poll(f"{address}/orders/{order['job']}", {"receipt": "Thank you for the tea."})


@pytest.mark.slow
def test_django(tmp_path: Path) -> None:
    example, port = Example("django", tmp_path, TWINS), free_port()
    address = f"http://127.0.0.1:{port}"
    example.run("manage.py", "migrate")
    server = example.running("manage.py", "runserver", str(port), "--noreload")
    with server, example.running("-m", "millrace", "worker", "--app", "shop.celery:app"):
        eventually(answers(address))
        order = httpx.post(f"{address}/orders/", data={"product": "tea"}).json()
        poll(f"{address}/tasks/{order['task']}/", {"status": "SUCCESS", "receipt": "Thank you for the tea."})
    assert example.run("-c", ON_COMMIT) == "0 1\n"


ON_COMMIT = """
import django
from django.db import transaction
from shop.celery import app

django.setup()
from shop.tasks import send_receipt

def waiting():
    return len(list(app.millrace.sync.jobs.find(state="ready")))

with transaction.atomic():
    send_receipt.delay_on_commit(1)
    before = waiting()
print(before, waiting())
"""


@pytest.mark.slow
def test_images(tmp_path: Path) -> None:
    example = Example("images.py", tmp_path, TWINS)
    with example.running("-m", "millrace", "worker", "--app", "images:app"):
        assert example.run("images.py", "sheet") == "sheet/contact-sheet.ppm: 17 jobs\n"

    assert len(list((example.folder / "sheet").glob("*.ppm"))) == 4 * 3 + 1


@pytest.mark.parametrize("name", sorted(path.name for path in TWINS.iterdir() if path.name != "__pycache__"))
def test_the_example_with_millraces_own_api_is_shorter(name: str) -> None:
    own, twin = code_lines(EXAMPLES / name), code_lines(TWINS / name)

    assert 10 < own < twin


def test_code_lines_are_lines_with_code() -> None:
    text = '"""A module.\n\nMore."""\n\n# a comment\nimport os  # why\n\n\n'
    text += 'def f(\n    x,\n):\n    """Doc."""\n    return x\n'

    assert lines_of(text) == 5


def code_lines(place: Path) -> int:
    """The lines of code in a file, or in the Python files of a folder: no blank lines, comments and docstrings."""
    files = [place] if place.is_file() else place.rglob("*.py")
    return sum(lines_of(file.read_text(encoding="utf-8")) for file in files)


def lines_of(text: str) -> int:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)

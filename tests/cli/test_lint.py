from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from headstart.cli.lint import lint
from headstart.lab.prompts.rules import RULES, rules_table

PAGE = Path(__file__).parents[2] / "docs" / "lint.md"
SECRET = "Xanadu"
SYSTEM = f"You are the assistant of {SECRET} and answer in short sentences. Never guess. " * 8


def invoke(*arguments: object, text: str | None = None) -> Result:
    app = typer.Typer()
    app.command()(lint)
    return CliRunner().invoke(app, list(map(str, arguments)), input=text, env={"COLUMNS": "100"})


@pytest.fixture
def no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine that never fetched the embedded model."""
    monkeypatch.setenv("HEADSTART_CACHE_DIR", str(tmp_path / "cache"))
    yield
    assert not (tmp_path / "cache").exists(), "lint must not fetch anything unasked"


def write_body(directory: Path, system: str = SYSTEM, **fields: object) -> Path:
    messages = [{"role": "system", "content": system.strip()}, {"role": "user", "content": "Where?"}]
    path = directory / "body.json"
    path.write_text(json.dumps({"messages": messages, **fields}))
    return path


def test_a_clean_body(tmp_path: Path, no_model: None) -> None:
    path = write_body(tmp_path)
    result = invoke(path, "--fail-on", "info")
    assert result.exit_code == 0, result.output
    said = result.stdout.removeprefix(f"{path}: nothing found; ")
    assert re.fullmatch(r"[\d,]+ of [\d,]+ characters can be shared\n", said)


def test_a_finding_reads_like_a_compilers(tmp_path: Path, no_model: None) -> None:
    path = write_body(tmp_path, f"It is Tuesday. {SYSTEM}")
    result = invoke(path)
    assert result.exit_code == 2
    first, cost, fix, *_ = result.stdout.splitlines()
    column = path.read_text().index("Tuesday") + 1
    where = f"{path}:1:{column}"
    what = 'a date or time in the system prompt: "Tuesday" [messages[0].content]'
    assert first == f"{where}: HS001 warning: {what}"
    assert re.fullmatch(r"    cost: [\d,]+ characters cannot be shared", cost)
    assert fix == "    fix:  move it to the end of the last user message, or drop it"
    last = result.stdout.splitlines()[-1]
    assert re.search(
        r": 1 warning; first variable at character 26 of [\d,]+: 25 characters can be shared; ", last
    )


def test_tokens_are_counted_where_the_embedded_model_is_at_hand(tmp_path: Path, smollm2: object) -> None:
    path = write_body(tmp_path, f"It is Tuesday. {SYSTEM}")
    assert "tokens can be shared" in invoke(path).stdout
    by_name = invoke(path, "--model", "smollm2-135m")
    assert "tokens can be shared" in by_name.stdout


@pytest.mark.parametrize(("fail_on", "code"), [("error", 0), ("warning", 2), ("info", 2), ("never", 0)])
def test_exit_codes_for_a_warning(tmp_path: Path, no_model: None, fail_on: str, code: int) -> None:
    assert invoke(write_body(tmp_path, f"It is Tuesday. {SYSTEM}"), "--fail-on", fail_on).exit_code == code


@pytest.mark.parametrize(("fail_on", "code"), [("error", 0), ("warning", 0), ("info", 2)])
def test_exit_codes_for_a_hint(tmp_path: Path, no_model: None, fail_on: str, code: int) -> None:
    path = write_body(tmp_path, f"Founding day: 2019-05-17. {SYSTEM}")
    assert invoke(path, "--fail-on", fail_on).exit_code == code


def test_exit_code_for_an_error(tmp_path: Path, no_model: None) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(write_body(tmp_path, cache_salt=str(n)).read_text() for n in range(3)))
    result = invoke(path, "--fail-on", "error")
    assert result.exit_code == 2
    assert "HS401 error" in result.stdout
    assert "1 error; of " in result.stdout.splitlines()[-1]
    assert "in 3 bodies" in result.stdout.splitlines()[-1]


def test_json_is_all_that_is_printed(tmp_path: Path, no_model: None) -> None:
    path = write_body(tmp_path, f"It is Tuesday. {SYSTEM}")
    result = invoke(path, "--json")
    assert result.exit_code == 2
    told = json.loads(result.stdout)
    assert told["file"] == str(path)
    assert (told["kind"], told["unit"]) == ("body", "characters")
    assert told["problems"][0]["rule"] == "HS001"
    assert told["problems"][0]["severity"] == "warning"
    assert told["sharing"][0]["num_now"] < told["sharing"][0]["num_after"]


@pytest.mark.parametrize("output", [(), ("--json",)])
def test_with_privacy_no_text_is_written(tmp_path: Path, no_model: None, output: tuple[str, ...]) -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {SECRET: f"It is Tuesday. {SECRET}"}}}
        for name in (f"z{SECRET}", f"a{SECRET}")
    ]
    system = f'The user\'s name is {SECRET}. {{"b": "{SECRET}", "a": 1}}\nExamples: {SECRET}  \n{SYSTEM}'
    path = write_body(tmp_path, system, tools=tools, cache_salt=f"{SECRET} 2026-12-01 12:20:52")
    shown = invoke(path, *output)
    hidden = invoke(path, "--privacy", *output)
    assert SECRET in shown.stdout
    assert hidden.exit_code == 2
    for word in (SECRET, "Tuesday", "Examples", "12:20"):
        assert word not in hidden.output
    assert hidden.stdout.count("HS0") == shown.stdout.count("HS0") > 2


def test_with_privacy_nor_of_what_cannot_be_read(tmp_path: Path, no_model: None) -> None:
    path = tmp_path / "chat.jinja"
    path.write_text(f"{{{{ messages }}}}{{% {SECRET} %}}")
    hidden, shown = invoke(path, "--privacy"), invoke(path)
    assert SECRET not in hidden.output
    assert hidden.exit_code == shown.exit_code


def test_a_template_and_its_kind(tmp_path: Path, no_model: None) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text(f"Be kind.\nToday is {{date}}. {SYSTEM}")
    result = invoke(path)
    assert result.exit_code == 2
    assert result.stdout.startswith(f"{path}:2:10: HS001 warning: ")
    assert invoke(path, "--kind", "body").exit_code == 1
    assert invoke(path, "--kind", "template").stdout == result.stdout
    assert invoke(path, "--kind", "novel").exit_code == 2


def test_the_standard_input(no_model: None) -> None:
    result = invoke("-", text=f"Today is {{date}}. {SYSTEM}")
    assert result.exit_code == 2
    assert result.stdout.startswith("-:1:10: HS001 warning: ")


def test_what_cannot_be_checked_is_said_in_one_sentence(tmp_path: Path, no_model: None) -> None:
    missing = invoke(tmp_path / "none.json")
    assert missing.exit_code == 1
    assert (
        missing.stderr == f"headstart lint: {tmp_path}/none.json cannot be read: No such file or directory\n"
    )
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"caf\xe9")
    assert invoke(latin).stderr == f"headstart lint: {latin} is not UTF-8: byte 3 cannot be read\n"
    path = tmp_path / "x.json"
    path.write_text('{"model": "x"}')
    result = invoke(path)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"headstart lint: {path}:1: a body needs messages, or a prompt that is a text\n"


def test_a_model_that_is_none(tmp_path: Path, no_model: None) -> None:
    result = invoke(write_body(tmp_path), "--model", str(tmp_path / "none"))
    assert result.exit_code == 1
    assert result.stderr.startswith("headstart lint: ")


@pytest.mark.parametrize("rule", ["HS001", "hs503"])
def test_a_rule_is_explained(rule: str) -> None:
    result = invoke("--explain", rule)
    assert result.exit_code == 0
    assert result.stdout == RULES[rule.upper()].documentation()


def test_no_such_rule_and_no_file() -> None:
    assert invoke("--explain", "HS999").exit_code == 2
    assert "HS001" in invoke("--explain", "HS999").stderr
    assert invoke().exit_code == 2


def test_what_the_page_shows_is_what_is_printed(
    tmp_path: Path, smollm2: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    [body] = [text for kind, text in blocks if kind == "json"]
    Path("request.json").write_text(body)
    assert f"```text\n{invoke('request.json').stdout}```\n" in page
    shown = [text for _, text in blocks if text.startswith("$ cat ")]
    assert len(shown) == 2
    for text in shown:
        listing, _, printed = text.partition("$ headstart lint ")
        command, _, source = listing.partition("\n")
        name = command.removeprefix("$ cat ")
        Path(name).write_text(source)
        assert f"{name}\n{invoke(name).stdout}" == printed


def test_the_pages_table_is_the_codes() -> None:
    assert rules_table() in PAGE.read_text()

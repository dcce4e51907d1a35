import re

import psutil
import typer
from typer.testing import CliRunner, Result

from headstart.cli.demo import QUESTIONS, demo, explain
from headstart.lab.load.timing import Timing, Usage
from headstart.model.source import ModelFiles
from tests.fake_openai import FakeServer, serving


def run(*options: str) -> Result:
    app = typer.Typer()
    app.command()(demo)
    return CliRunner().invoke(app, options, env={"COLUMNS": "80", "TERM": "dumb"})


def timing(seconds: float, prompt: int | None = 1200, cached: int | None = 0) -> Timing:
    return Timing(10.0, (10.0 + seconds,), None, 48, Usage(prompt, cached, 1))


def test_a_running_server_is_asked_cold_and_warm() -> None:
    fake = FakeServer()
    with serving(fake) as base_url:
        result = run("--base-url", base_url)
    assert result.exit_code == 0, result.stderr
    warm_up, cold, warm = ([message["content"] for message in body["messages"]] for body in fake.received)
    assert cold[0] == warm[0] != warm_up[0]
    assert (cold[1], warm[1]) == QUESTIONS
    assert len(cold[0].split()) > 900
    for question in QUESTIONS:
        assert question in result.stdout
    assert "The ferry" in result.stdout, "the answer's first line"
    rows = [line.split() for line in result.stdout.replace("│", " ").splitlines()]
    (cold_row,) = (row for row in rows if row[:1] == ["cold"] and row[2:3] == ["ms"])
    (warm_row,) = (row for row in rows if row[:1] == ["warm"] and row[2:3] == ["ms"])
    _, cached, computed = (int(number.replace(",", "")) for number in warm_row[3:])
    assert cold_row[4] == "0"
    assert cached > 5000, "the fake server counts bytes"
    assert computed == len(QUESTIONS[1])


def test_a_server_that_saw_it_before_is_cold_again() -> None:
    fake = FakeServer()
    with serving(fake) as base_url:
        run("--base-url", base_url)
        assert run("--base-url", base_url, "--model", "other").exit_code == 0
    editions = {body["messages"][0]["content"].splitlines()[0] for body in fake.received[1::3]}
    assert len(editions) == 2
    assert [body["model"] for body in fake.received] == ["fake-1"] * 3 + ["other"] * 3


def test_a_server_that_cannot_be_asked() -> None:
    result = run("--base-url", "nowhere")
    assert result.exit_code == 1
    assert result.stderr.startswith("headstart demo: a base URL looks like http")


def test_a_model_that_is_not_there() -> None:
    result = run("--model", "no-such-model")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "headstart demo: there is no model 'no-such-model'" in result.stderr


def test_a_server_of_its_own(smollm2: ModelFiles) -> None:
    others = set(psutil.Process().children(recursive=True))  # servers that other tests keep
    result = run()
    assert result.exit_code == 0, result.stderr
    sentence = " ".join(result.stdout.split("└")[1].split())
    found = re.search(r"Of the warm prompt's ([\d,]+) tokens the server had ([\d,]+) in its cache", sentence)
    assert found, result.stdout
    prompt, cached = (int(number.replace(",", "")) for number in found.groups())
    assert 1100 < prompt < 1300
    assert prompt - 30 < cached < prompt
    assert set(psutil.Process().children(recursive=True)) <= others, "the server is gone"


def test_the_sentence_has_the_numbers() -> None:
    assert explain(timing(0.9), timing(0.06, 1190, 1180)) == (
        "Of the warm prompt's 1,190 tokens the server had 1,180 in its cache, because the cold prompt began "
        "with the same ones, and computed only 10: its first token came after 60 ms, the cold one's after "
        "900 ms, 15.0 times sooner."
    )


def test_the_sentence_claims_nothing_that_was_not_seen() -> None:
    assert explain(timing(0.1), timing(0.2, 1190, 1180)).endswith("100 ms, no sooner.")
    assert "found nothing" in explain(timing(0.9), timing(0.9, 1190, 0))
    assert "does not say" in explain(timing(0.9), timing(0.1, 1190, None))

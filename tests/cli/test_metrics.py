from __future__ import annotations

import json

import typer
from typer.testing import CliRunner, Result

from headstart.cli.metrics import metrics
from tests.metrics_pages import page, serve

TRAFFIC = {
    'vllm__prefix_cache_queries_total__engine="0"': 10_000,
    'vllm__prefix_cache_hits_total__engine="0"': 7_500,
    'vllm__request_success_total__engine="1"': 40,
}


def invoke(*arguments: object) -> Result:
    app = typer.Typer()
    app.command()(metrics)
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "100"})


def test_for_people() -> None:
    with serve(page("vllm_before"), page("vllm_before", **TRAFFIC)) as site:
        result = invoke(site.url, "--window", 0.01)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    text = " ".join(result.stdout.split())
    assert f"vLLM at {site.url}/metrics: Qwen/Qwen3-8B, 2 engines" in text
    assert "token hit rate 75.0% high from 50%; 7,500 of 10,000 tokens" in text
    assert "KV usage 35.0% high from 80%; 35.0%, then 35.0%" in text
    assert "healthy much is hit" in text


def test_for_programs() -> None:
    with serve(page("vllm_before"), page("vllm_before", **TRAFFIC)) as site:
        result = invoke(site.url, "--window", 0.01, "--json", "--high-rate", 0.9)
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["url"] == f"{site.url}/metrics"
    (one,) = told["models"]
    assert one["engine"] == "vLLM"
    assert one["token_hit_rate"] == 0.75
    assert one["state"] == "nothing shared"
    assert one["thresholds"] == {"usage": 0.8, "rate": 0.9}
    assert one["seconds"] >= 0.01


def test_no_traffic_is_no_error() -> None:
    with serve(page("sglang_before")) as site:
        result = invoke(site.url, "--window", 0.01)
    assert result.exit_code == 0
    assert "no prompt was looked up within" in result.stdout
    assert "30 run and 4 wait" in result.stdout


def test_errors_are_sentences() -> None:
    with serve("<html></html>") as site:
        result = invoke(site.url, "--window", 0.01)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"headstart metrics: {site.url}/metrics is a web page")
    restarted = page("vllm_before").replace(" 1000000.0", " 12.0")
    with serve(page("vllm_before"), restarted) as site:
        result = invoke(site.url, "--window", 0.01)
    assert result.exit_code == 1
    assert "went back within the window" in result.stderr


def test_what_cannot_be_is_refused() -> None:
    assert invoke("http://x", "--window", 0).exit_code == 2
    assert invoke("http://x", "--high-usage", 80).exit_code == 2
    result = invoke("ftp://x")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "headstart metrics: 'ftp://x' is no http address, such as http://127.0.0.1:8000\n"

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from headstart.cli.pull import pull
from headstart.errors import DownloadError
from headstart.model import source
from headstart.model.source import ModelFiles

SUPPORTED = "llama, mistral, qwen2, qwen3, smollm3"


def run(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(pull)
    return CliRunner().invoke(app, list(arguments))


def test_says_where_the_files_are(tiny_llama_dir: Path) -> None:
    result = run(str(tiny_llama_dir))
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "llama, context of 2,048 tokens",
        f"weights    {tiny_llama_dir / 'model.safetensors'}",
        f"tokenizer  {tiny_llama_dir / 'tokenizer.json'}",
    ]


def test_default_is_the_built_in_model(smollm2: ModelFiles) -> None:
    result = run()
    assert result.exit_code == 0
    assert str(smollm2.weights[0]) in result.stdout


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            '{"model_type": "mamba"}',
            f"headstart pull: the architecture 'mamba' is not supported; supported: {SUPPORTED}\n",
        ),
        ("{}", f"headstart pull: the architecture None is not supported; supported: {SUPPORTED}\n"),
    ],
)
def test_model_that_cannot_be_served(
    tiny_llama_dir: Path, tmp_path: Path, config: str, sentence: str
) -> None:
    directory = shutil.copytree(tiny_llama_dir, tmp_path / "model")
    (directory / "config.json").write_text(config)
    result = run(str(directory))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == sentence


def test_unknown_name() -> None:
    result = run("smolm2-135m")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "did you mean 'smollm2-135m'?" in result.stderr


def test_failed_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise DownloadError("no network")

    monkeypatch.setenv("HEADSTART_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(source, "fetch", fail)
    result = run("smollm2-135m")
    assert result.exit_code == 1
    assert result.stderr == "headstart pull: no network\n"


def test_help_teaches() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "HEADSTART_CACHE_DIR" in result.stdout
    assert "headstart pull smollm2-135m" in result.stdout


def test_no_torch_on_the_command_line() -> None:
    program = (
        "import sys, headstart.cli.pull; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

"""C files of this package → libraries, compiled at first use and kept in the per-user cache.

No compiler is needed: without one, or where anything else goes wrong, there is one line in the log and
torch's operators do the work.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import torch

from headstart.errors import DownloadError
from headstart.model.store import cache_root, entry

logger = logging.getLogger(__name__)

# Sums may be taken in another order, as vector instructions do; NaN and infinities keep their meaning.
_FLAGS = (
    "-O3",
    "-march=native",
    "-fPIC",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fassociative-math",
)


def load_library(name: str) -> ctypes.CDLL | None:
    """``name``.c, compiled for this very CPU; None, and a line in the log, if that is impossible."""
    try:
        return _load(name)
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip().splitlines()[0] if error.stderr.strip() else str(error)
    except (OSError, DownloadError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    logger.warning("kernels in %s.c are not used, torch's operators are: %s", name, reason)
    return None


def _load(name: str) -> ctypes.CDLL:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise OSError("there is no C compiler (cc, or what CC names)")
    source = resources.files("headstart.model.native").joinpath(f"{name}.c").read_text()
    version = _run(compiler, "--version").splitlines()[0]
    made_from = (source, version, _FLAGS, platform.machine(), sorted(torch.cpu.get_capabilities().items()))
    digest = hashlib.sha256(repr(made_from).encode()).hexdigest()

    def build(directory: Path) -> None:
        path = directory / f"{name}.c"
        path.write_text(source)
        _run(compiler, *_FLAGS, "-c", str(path), "-o", str(directory / f"{name}.o"))
        # Linked without -fopenmp: torch has brought its OpenMP along, and two of them would be two pools
        # of threads, each for all cores.
        _run(compiler, "-shared", str(directory / f"{name}.o"), "-lm", "-o", str(directory / f"{name}.so"))

    directory = entry(cache_root() / "native" / f"{name}-{digest[:16]}", digest, build)
    return ctypes.CDLL(str(directory / f"{name}.so"))


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout  # noqa: S603

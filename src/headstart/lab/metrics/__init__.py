"""What a live server's ``/metrics`` say of its prefix cache: vLLM's, SGLang's or headstart's."""

from headstart.lab.metrics.engines import Engine
from headstart.lab.metrics.exposition import Exposition, MetricsError
from headstart.lab.metrics.reading import Reading, Thresholds, readings
from headstart.lab.metrics.scrape import Scraper, metrics_url
from headstart.lab.metrics.window import Window, watch
from headstart.lab.metrics.words import State

__all__ = [
    "Engine",
    "Exposition",
    "MetricsError",
    "Reading",
    "Scraper",
    "State",
    "Thresholds",
    "Window",
    "metrics_url",
    "readings",
    "watch",
]

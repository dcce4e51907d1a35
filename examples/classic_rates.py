"""Servers with the same token hit rate, of which one feels fast and the other does not.

    python examples/classic_rates.py

Each serves 400 requests, through the lab's replay on the real cache core, with nothing ever evicted.

repeats    seven of eight requests ask again what was asked before, 2,000 tokens, and one is new
documents  one of eight requests asks again about a document of 14,000 tokens, and seven are new, of 286
greeting   all requests begin with the same 64 tokens, and go on with 1,936 of their own
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from array import array
from itertools import count

from headstart.lab.replay.outcome import Outcome, Rates, Setting
from headstart.lab.replay.replay import replay
from headstart.lab.traces.trace import Trace, TraceFormat, TraceRequest

NUM_REQUESTS, WARMUP = 400, 8
Prompt = tuple[int, int]  # tokens that are shared, tokens that nobody has sent before


def main() -> None:
    """All three, then where the hits of the documents are."""
    repeats = serve("repeats", [(1_999, 1)] * 7 + [(0, 2_000)])
    documents = serve("documents", [(14_000, 1)] + [(0, 286)] * 7)
    greeting = serve("greeting", [(64, 1_936)])
    print(f"{'':12}{'token rate':>12}{'full hits':>12}{'any hit':>12}{'median request':>16}")
    for name, outcome in (("repeats", repeats), ("documents", documents), ("greeting", greeting)):
        rates = outcome.rates
        print(
            f"{name:12}{rates.token_hit_rate:12.1%}{rates.request_full_hit_rate:12.1%}"
            f"{rates.request_any_hit_rate:12.1%}{median_share(outcome):16.1%}"
        )
    print("\ndocuments, by prompt length")
    for name, at_least, below in (("under 1,024", 0, 1_024), ("1,024 and more", 1_024, 1 << 31)):
        some = [one for one in documents.served if at_least <= one.num_prompt_tokens < below]
        rates = Rates.of(some, documents.setting.block_size)
        print(f"  {name:16}{rates.num_requests:5} requests{rates.token_hit_rate:9.1%} of their tokens hit")


def serve(name: str, prompts: list[Prompt]) -> Outcome:
    """The prompts in turn, each new part with tokens of its own; the first few warm the cache."""
    fresh = count(1)
    requests = []
    for number in range(NUM_REQUESTS):
        shared, own = prompts[number % len(prompts)]
        tokens = array("i", [0]) * shared
        tokens.extend(next(fresh) for _ in range(own))
        requests.append(TraceRequest(tokens.tobytes(), len(tokens)))
    trace = Trace(name, TraceFormat.TOKENS, requests)
    return replay(trace, Setting(prefix_index="radix"), warmup=WARMUP)


def median_share(outcome: Outcome) -> float:
    """What share of its prompt the middle request hits."""
    shares = sorted(one.num_hit_tokens / one.num_prompt_tokens for one in outcome.served)
    return shares[len(shares) // 2]


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    main()

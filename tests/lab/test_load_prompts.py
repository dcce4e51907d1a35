import pytest

from headstart.errors import ConfigError
from headstart.lab.load.prompts import PromptSource, parse_vocab


def test_prefixes_have_their_length_and_part_at_once() -> None:
    prompts = PromptSource(range(100, 150), seed=0)
    prefixes = [prompts.prefix(7) for _ in range(50)]
    assert {len(prefix) for prefix in prefixes} == {7}
    assert sorted(prefix[0] for prefix in prefixes) == list(range(100, 150))
    assert all(100 <= token < 150 for prefix in prefixes for token in prefix)
    with pytest.raises(ConfigError, match="a vocabulary range of 50 ids has too few first tokens"):
        prompts.prefix(7)


def test_a_prefix_of_nothing() -> None:
    assert PromptSource(range(1), seed=0).prefix(0) == []


def test_tails_have_their_length_and_part_at_once() -> None:
    tails = PromptSource(range(100, 110), seed=0).tails(10, 3)
    assert {len(tail) for tail in tails} == {3}
    assert sorted(tail[0] for tail in tails) == list(range(100, 110))
    with pytest.raises(ConfigError, match="a vocabulary range of 10 ids has no 11 different tails"):
        PromptSource(range(10), seed=0).tails(11, 3)


def test_a_seed_gives_the_same_prompts_again_and_another_gives_others() -> None:
    first, again, other = (PromptSource(range(1000), seed).prefix(20) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_vocabulary_ranges() -> None:
    assert parse_vocab("1000:20000") == range(1000, 20000)
    for wrong in ("", "5", "5:5", "6:5", "-1:5", "a:b", "1:2:3", "1000-20000"):
        with pytest.raises(ConfigError, match="a vocabulary range is LOW:HIGH"):
            parse_vocab(wrong)

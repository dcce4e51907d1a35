from __future__ import annotations

import io
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from rich.console import Console

from headstart import LLM, Generation, SamplingParams
from headstart.cache import MissReason
from headstart.engine import llm as llm_module
from headstart.engine.choices import of_choice
from headstart.engine.llm import _Job
from headstart.engine.request import RequestOutput, StepPlan, StepResult, TokenLogprob
from headstart.errors import ConfigError, EngineError, ModelNotFoundError, RequestError
from headstart.text import TextStream

TEXT = "The server keeps the keys and the values of every block of tokens until the memory is wanted."
GREEDY = SamplingParams(temperature=0.0, max_tokens=16)
SEEDED = SamplingParams(seed=3, max_tokens=12)


@pytest.fixture(scope="module")
def shared_llm(tiny_llama_dir: Path) -> LLM:
    return LLM(str(tiny_llama_dir), dtype="float32", num_blocks=300, max_num_seqs=4)


@pytest.fixture
def llm(shared_llm: LLM) -> Iterator[LLM]:
    """With nothing cached; what a test leaves behind is its fault."""
    assert shared_llm.reset_prefix_cache()
    yield shared_llm
    assert_idle(shared_llm)


def assert_idle(llm: LLM) -> None:
    assert not llm._core.has_work
    manager = llm._core.scheduler.manager
    manager.check()
    assert manager.num_free_blocks == 300


class Meddler:
    """A runner that does something before its nth step."""

    def __init__(self, llm: LLM, monkeypatch: pytest.MonkeyPatch, n: int, action: Callable[[], Any]) -> None:
        self.left, self.action = n, action
        self.runner = llm._core._runner
        monkeypatch.setattr(llm._core, "_runner", self)

    def run(self, plan: StepPlan) -> StepResult:
        self.left -= 1
        if self.left == 0:
            self.action()
        return self.runner.run(plan)


# -- what comes out ------------------------------------------------------------------------------


def test_a_generation_has_text_tokens_hits_and_a_reason(llm: LLM) -> None:
    (generation,) = llm.generate([TEXT], GREEDY)
    assert generation.prompt_token_ids == llm.tokenizer.encode(TEXT)
    assert len(generation.token_ids) == 16
    assert generation.text == llm.tokenizer.decode(generation.token_ids)
    assert (generation.num_cached_tokens, generation.finish_reason) == (0, "length")


def test_what_one_call_computed_the_next_one_finds(llm: LLM) -> None:
    (cold,) = llm.generate(TEXT, GREEDY)
    (warm,) = llm.generate(TEXT, GREEDY)
    assert warm.num_cached_tokens == len(cold.prompt_token_ids) - 1
    assert (warm.text, warm.token_ids) == (cold.text, cold.token_ids)
    (longer,) = llm.generate([cold.prompt_token_ids + cold.token_ids], GREEDY)
    # The last token of the answer was never computed, since nobody asked for what follows it.
    assert longer.num_cached_tokens == len(cold.prompt_token_ids) + len(cold.token_ids) - 1
    assert llm.reset_prefix_cache()
    assert llm.generate(TEXT, GREEDY)[0].num_cached_tokens == 0


def test_prompts_are_texts_or_token_ids_one_or_many(llm: LLM) -> None:
    ids = llm.tokenizer.encode(TEXT)
    (expected,) = llm.generate([TEXT], GREEDY)
    same: list[Any] = [TEXT, (TEXT,), ids, [ids], (tuple(ids),)]
    same += [
        {"prompt": TEXT},
        [{"prompt": TEXT}],
        {"prompt_token_ids": ids},
        [{"prompt_token_ids": tuple(ids)}],
    ]
    for prompts in same:
        (generation,) = llm.generate(prompts, GREEDY)
        assert (generation.prompt_token_ids, generation.text) == (ids, expected.text)
    assert llm.generate([], GREEDY) == []
    both = llm.generate([TEXT, [5, 6, 7]], GREEDY)
    assert [g.prompt_token_ids for g in both] == [ids, [5, 6, 7]]


def test_a_batch_gives_in_order_what_its_prompts_give_alone(llm: LLM) -> None:
    prompts = [TEXT[number : 3 * number + 20] for number in range(0, 20, 2)]  # more than max_num_seqs
    together = llm.generate(prompts, GREEDY)
    llm.reset_prefix_cache()
    alone = [llm.generate(prompt, GREEDY)[0] for prompt in prompts]
    assert [g.token_ids for g in together] == [g.token_ids for g in alone]


def test_salts_do_not_share(llm: LLM) -> None:
    hits = [
        llm.generate(TEXT, GREEDY, cache_salt=salt)[0].num_cached_tokens for salt in ("a", None, "b", "a")
    ]
    assert hits[:3] == [0, 0, 0]
    assert hits[3] > 0


def test_opt_outs_of_reading_and_of_writing(llm: LLM) -> None:
    silent = [llm.generate(TEXT, GREEDY, skip_writing_prefix_cache=True)[0] for _ in range(2)]
    first, second = (llm.generate(TEXT, GREEDY)[0] for _ in range(2))
    deaf = llm.generate(TEXT, GREEDY, skip_reading_prefix_cache=True)[0]
    assert [one.num_cached_tokens for one in (*silent, first, deaf)] == [0, 0, 0, 0]
    assert second.num_cached_tokens == len(second.prompt_token_ids) - 1
    assert {one.text for one in (*silent, first, second, deaf)} == {first.text}


def test_a_prompt_is_computed_and_kept_without_an_answer(llm: LLM) -> None:
    warm = llm.generate(TEXT, SamplingParams(max_tokens=0), retain_seconds=60.0)[0]
    assert (warm.text, warm.token_ids, warm.finish_reason) == ("", [], "length")
    [pin] = llm._core.scheduler.manager.pins
    assert pin.num_blocks == len(warm.prompt_token_ids) // 16
    assert llm.generate(TEXT, GREEDY)[0].num_cached_tokens == len(warm.prompt_token_ids) - 1


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), "1h"])
def test_a_time_to_be_kept_is_a_number(llm: LLM, seconds: Any) -> None:
    with pytest.raises(RequestError, match="retain_seconds must be a number above 0"):
        llm.generate(TEXT, GREEDY, retain_seconds=seconds)


def test_a_seed_repeats(llm: LLM) -> None:
    def sampled(seed: int) -> list[int]:
        return llm.generate(TEXT, SamplingParams(seed=seed, max_tokens=12))[0].token_ids

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)


def test_each_prompt_may_have_parameters_of_its_own(llm: LLM) -> None:
    each = [replace(GREEDY, max_tokens=3), replace(SEEDED, n=2, max_tokens=5), replace(GREEDY, stop=("e",))]
    together = llm.generate([TEXT] * 3, each)
    alone = [generation for params in each for generation in llm.generate(TEXT, params)]
    assert [g.token_ids for g in together] == [g.token_ids for g in alone]
    assert [len(g.token_ids) for g in together[:3]] == [3, 5, 5]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"sampling_params": [GREEDY]},
            "sampling_params must have one entry for each of the 2 prompts, got 1",
        ),
        ({"sampling_params": {"n": 1}}, "sampling_params must be of type SamplingParams, or a list"),
        ({"sampling_params": [GREEDY, None]}, "sampling_params must be of type SamplingParams, or a list"),
        ({"priority": [1]}, "priority must have one entry for each of the 2 prompts, got 1"),
        ({"priority": "high"}, "priority must be of type int, or a list"),
        ({"priority": 1}, 'prompt 0: priority is 1, but scheduling_policy is not "priority"'),
    ],
)
def test_what_is_not_for_each_prompt_is_refused(llm: LLM, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate([TEXT, TEXT], **fields)
    assert str(caught.value).startswith(words)


def test_the_smaller_priority_is_served_first(tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(
        str(tiny_llama_dir), dtype="float32", num_blocks=100, max_num_seqs=1, scheduling_policy="priority"
    )
    served: list[int] = []
    runner = llm._core._runner

    class Watch:
        def run(self, plan: StepPlan) -> StepResult:
            served.extend(row.token_ids[0] for row in plan.rows)
            return runner.run(plan)

    monkeypatch.setattr(llm._core, "_runner", Watch())
    one = SamplingParams(temperature=0.0, max_tokens=1)
    llm.generate([[1, 9], [2, 9], [3, 9]], one, priority=[2, 0, 1])
    assert served == [2, 3, 1]
    assert llm.reset_prefix_cache()
    llm.generate([[1, 9], [2, 9]], one, priority=-5)
    assert served[3:] == [1, 2]


# -- how it ends ---------------------------------------------------------------------------------


class Teller:
    """A runner in place of the model: its answer is prescribed."""

    def __init__(self, llm: LLM, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        self.ids = llm.tokenizer.encode(text)
        monkeypatch.setattr(llm._core, "_runner", self)

    def run(self, plan: StepPlan) -> StepResult:
        return StepResult(
            {row.request_id: self.ids[row.num_output_tokens] for row in plan.rows if row.sample}
        )


@pytest.mark.parametrize("stop", ["two", "e two th", " three"])
def test_a_stop_string_ends_text_and_tokens(llm: LLM, monkeypatch: pytest.MonkeyPatch, stop: str) -> None:
    text = "one two three four five"
    teller = Teller(llm, monkeypatch, text)
    (stopped,) = llm.generate(TEXT, SamplingParams(stop=("never", stop), max_tokens=100))
    assert stopped.text == text[: text.index(stop)]
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids == teller.ids[: len(stopped.token_ids)]
    assert stop in llm.tokenizer.decode(stopped.token_ids)
    assert stop not in llm.tokenizer.decode(stopped.token_ids[:-1])  # it is the last that completed it


def test_a_stop_string_waits_for_min_tokens(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    teller = Teller(llm, monkeypatch, "one two three two four five")
    first = SamplingParams(stop=("two",), max_tokens=len(teller.ids))
    (early,) = llm.generate(TEXT, first)
    (late,) = llm.generate(TEXT, replace(first, min_tokens=len(early.token_ids)))
    assert (early.text, late.text) == ("one ", "one two three ")


def test_tokens_that_came_with_the_end_of_a_stop_string_are_cut(llm: LLM) -> None:
    ids = llm.tokenizer.encode("one two three four")
    job = _Job([1], llm.tokenizer, SamplingParams(stop=("two",), logprobs=0), [None], [])
    logprobs = tuple(TokenLogprob(-float(i)) for i in range(len(ids)))
    job.take(RequestOutput("a", tuple(ids), 0, logprobs=logprobs))  # a step may bring several tokens
    cut = job.result()
    assert cut.logprobs == list(logprobs[: len(cut.token_ids)])
    assert cut.text == "one "
    assert llm.tokenizer.decode(cut.token_ids).endswith("two")
    assert (cut.token_ids, cut.finish_reason) == (ids[: len(cut.token_ids)], "stop")


@pytest.mark.parametrize("how", ["stop_token_ids", "end of answer"])
def test_a_stop_token_is_the_last_token_and_not_in_the_text(
    llm: LLM, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    teller = Teller(llm, monkeypatch, "one two three four five")
    end = teller.ids[4]
    place = teller.ids.index(end)
    stop: tuple[int, ...] = ()
    if how == "stop_token_ids":
        stop = (end,)
    else:
        monkeypatch.setattr(llm.tokenizer, "eos_token_ids", frozenset({end}))
    (ended,) = llm.generate(TEXT, SamplingParams(stop_token_ids=stop, max_tokens=100))
    assert ended.token_ids == teller.ids[: place + 1]
    assert ended.text == llm.tokenizer.decode(teller.ids[:place])
    assert ended.finish_reason == "stop"


def test_what_ended_the_text_is_part_of_it_if_that_is_wanted(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    teller = Teller(llm, monkeypatch, "one two three four five")
    place = teller.ids.index(teller.ids[4])
    ends = (
        (SamplingParams(stop=("two",)), "one two"),
        (
            SamplingParams(stop_token_ids=(teller.ids[4],)),
            llm.tokenizer.decode(teller.ids[: place + 1]),
        ),
    )
    for params, text in ends:
        (ended,) = llm.generate(TEXT, replace(params, include_stop_str_in_output=True))
        assert (ended.text, ended.finish_reason) == (text, "stop")


def test_half_a_character_at_the_end_is_shown_as_such(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    teller = Teller(llm, monkeypatch, "né")
    (cut,) = llm.generate(TEXT, SamplingParams(max_tokens=len(teller.ids) - 1))
    assert (cut.text, cut.finish_reason) == ("n\ufffd", "length")


def test_without_max_tokens_it_goes_on_to_the_end_of_the_context(llm: LLM) -> None:
    prompt = [number % 300 + 10 for number in range(2040)]
    (generation,) = llm.generate([prompt], SamplingParams(temperature=0.0, max_tokens=None))
    assert (len(generation.token_ids), generation.finish_reason) == (8, "length")


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("", "prompt 1: the prompt must have at least one token"),
        ([], "prompt 1: the prompt must have at least one token"),
        ([7, 512], "prompt 1: token id 512 at position 1"),
        ([2**40], "prompt 1: token ids must be integers of 32 bits"),
        (["a"], "prompt 1: token ids must be integers of 32 bits"),
        ([1.5], "prompt 1: token ids must be integers of 32 bits"),
        ("half \ud800", "prompt 1: text must be valid Unicode"),
        ([1] * 2040, "prompt 1: this model's maximum context length is 2048 tokens, but the prompt has 2040"),
    ],
)
def test_an_error_names_the_prompt_and_nothing_is_computed(llm: LLM, bad: Any, words: str) -> None:
    before = llm._core.stats()
    with pytest.raises(RequestError) as caught:
        llm.generate([TEXT, bad, TEXT], GREEDY)
    assert str(caught.value).startswith(words)
    assert_idle(llm)
    assert llm._core.stats() == before
    assert len(llm.generate([TEXT, TEXT], GREEDY)) == 2


def test_an_empty_salt_is_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="cache_salt"):
        llm.generate([TEXT], GREEDY, cache_salt="")


def test_an_unknown_option_is_an_error_with_a_hint(tiny_llama_dir: Path) -> None:
    with pytest.raises(ConfigError, match="unknown option 'blok_size'; did you mean 'block_size'"):
        LLM(str(tiny_llama_dir), blok_size=16)


def test_an_unknown_model_is_an_error() -> None:
    with pytest.raises(ModelNotFoundError, match="nowhere"):
        LLM("nowhere")


def test_a_step_that_fails_is_an_error_and_leaves_the_engine_usable(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("the kernel is upset")

    with monkeypatch.context() as patch:
        Meddler(llm, patch, 3, fail)
        with pytest.raises(EngineError, match="its log says how"):
            llm.generate([TEXT, "another"] * 5, GREEDY)
    assert_idle(llm)
    assert len(llm.generate(TEXT, GREEDY)[0].token_ids) == 16


def test_a_request_that_cannot_be_built_is_never_in_the_engine(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever raises on the way, the engine must not know an id that nobody here does."""
    with monkeypatch.context() as patch:
        built: list[object] = []

        def text_stream(*args: Any, **kwargs: Any) -> TextStream:
            if len(built) == 2:
                raise RequestError("no such text", param="stop")
            built.append(args)
            return TextStream(*args, **kwargs)

        patch.setattr(llm_module, "TextStream", text_stream)
        with pytest.raises(RequestError, match="prompt 2: no such text"):
            llm.generate([TEXT] * 3, GREEDY)
    assert_idle(llm)
    assert len(llm.generate(TEXT, GREEDY)[0].token_ids) == 16


@pytest.mark.parametrize("bad", [None, 5, {"text": "hi"}, {"prompt": [1]}, {"prompt": "a", "more": 1}, b"ab"])
def test_what_is_no_prompt_is_refused_in_a_sentence(llm: LLM, bad: Any) -> None:
    for prompts, index in ((bad, 0), ([TEXT, bad], 1)):
        if prompts == b"ab":  # a sequence of integers: two token ids
            continue
        with pytest.raises(RequestError, match=f"^prompt {index}: a prompt must be a text, a list of"):
            llm.generate(prompts, GREEDY)


# -- Ctrl-C --------------------------------------------------------------------------------------


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_ctrl_c_ends_the_call_and_leaves_the_pool_free(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    llm.generate(TEXT[:40], GREEDY)
    with monkeypatch.context() as patch:
        meddler = Meddler(llm, patch, n, press_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([TEXT[:50] + "!", "another"] * 3, GREEDY)
        assert meddler.left == 0, "it went on after the step in which Ctrl-C was pressed"
    assert_idle(llm)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert len(llm.generate(TEXT, GREEDY)[0].token_ids) == 16


def test_ctrl_c_in_the_middle_of_planning_leaves_the_cache_whole(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = llm._core.scheduler.manager
    allocate = manager.allocate_slots

    def interrupted(*args: Any) -> Any:
        grant = allocate(*args)
        press_ctrl_c()
        return grant

    with monkeypatch.context() as patch:
        patch.setattr(manager, "allocate_slots", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([TEXT, "another"], GREEDY)
    assert_idle(llm)


def test_a_handler_of_the_users_own_stays_and_may_raise_at_any_time(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(BaseException):
        pass

    def handler(_number: int, _frame: FrameType | None) -> None:
        raise Stop

    before = signal.signal(signal.SIGINT, handler)
    try:
        with monkeypatch.context() as patch:
            Meddler(llm, patch, 3, press_ctrl_c)
            with pytest.raises(Stop):
                llm.generate([TEXT, "another"], GREEDY)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert_idle(llm)


def test_it_works_in_a_thread_where_signals_are_not_ours(llm: LLM) -> None:
    generations: list[Generation] = []
    thread = threading.Thread(target=lambda: generations.extend(llm.generate(TEXT, GREEDY)))
    thread.start()
    thread.join()
    assert len(generations) == 1


# -- chat and progress ---------------------------------------------------------------------------


def test_a_chat_is_its_rendered_prompt(llm: LLM) -> None:
    answer = llm.chat([{"role": "user", "content": "How many tokens were found?"}], GREEDY)
    rendered = "<|im_start|>user\nHow many tokens were found?<|im_end|>\n<|im_start|>assistant\n"
    ids = llm.tokenizer.encode(rendered, add_special_tokens=False)
    assert answer.prompt_token_ids == ids
    assert answer.text == llm.generate([ids], GREEDY)[0].text


def test_a_model_without_a_template_cannot_chat(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "_template", None)
    with pytest.raises(RequestError, match="no chat template"):
        llm.chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    ("prompts", "progress", "terminal", "shown"),
    [
        (3, True, True, True),
        (3, False, True, False),
        (3, True, False, False),
        (1, True, True, False),
    ],
)
def test_a_bar_is_shown_for_a_batch_on_a_terminal_if_it_is_wanted(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, prompts: int, progress: bool, terminal: bool, shown: bool
) -> None:
    screen = io.StringIO()

    def console(*, stderr: bool) -> Console:
        assert stderr  # standard output is the caller's
        return Console(file=screen, force_terminal=terminal)

    monkeypatch.setattr(llm_module, "Console", console)
    llm.generate([TEXT] * prompts, SamplingParams(max_tokens=2), progress=progress)
    assert ("3/3" in screen.getvalue()) == shown
    assert bool(screen.getvalue()) == shown


def test_nothing_is_printed_otherwise(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    llm.generate([TEXT, TEXT], GREEDY)
    assert capfd.readouterr() == ("", "")


# -- log-probabilities -----------------------------------------------------------------------------


def test_greedy_tokens_are_the_likeliest_and_told_so(llm: LLM) -> None:
    (plain,) = llm.generate(TEXT, GREEDY)
    (told,) = llm.generate(TEXT, replace(GREEDY, logprobs=2))
    assert plain.logprobs is None
    assert told.token_ids == plain.token_ids
    assert told.logprobs is not None
    assert [one.top[0] for one in told.logprobs] == [
        (token, one.logprob) for token, one in zip(told.token_ids, told.logprobs, strict=True)
    ]
    assert all(one.top[1][1] <= one.logprob < 0 for one in told.logprobs)


# -- several choices of one prompt -----------------------------------------------------------------


class Counter:
    """A runner that counts what is computed."""

    def __init__(self, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runner = llm._core._runner
        self.tokens = 0
        monkeypatch.setattr(llm._core, "_runner", self)

    def run(self, plan: StepPlan) -> StepResult:
        self.tokens += plan.num_tokens
        return self.runner.run(plan)


def test_choices_compute_their_prompt_once(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = [(7 * number) % 500 for number in range(1000)]
    counter = Counter(llm, monkeypatch)
    before = llm._core.stats()
    four = llm.generate([prompt], replace(SEEDED, n=4, max_tokens=5))
    assert [len(choice.token_ids) for choice in four] == [5] * 4
    assert counter.tokens == 1000 + 4 * 4  # nobody asked for what follows a choice's last token
    after = llm._core.stats()
    assert after.prompt_tokens - before.prompt_tokens == 1000
    assert after.prefix_cache_queries - before.prefix_cache_queries == 1000
    assert after.prefix_cache_hits == before.prefix_cache_hits
    again = llm.generate([prompt], replace(SEEDED, n=4, max_tokens=5))
    assert [choice.token_ids for choice in again] == [choice.token_ids for choice in four]
    assert {choice.num_cached_tokens for choice in again} == {999}


def test_a_choice_is_what_it_is_alone_and_the_first_what_it_is_without_n(llm: LLM) -> None:
    choices = llm.generate(TEXT, replace(SEEDED, n=6))  # more than max_num_seqs
    assert len({tuple(choice.token_ids) for choice in choices}) == 6
    assert llm.generate(TEXT, SEEDED)[0].token_ids == choices[0].token_ids
    assert llm.generate(TEXT, of_choice(SEEDED, 5))[0].token_ids == choices[5].token_ids
    crowd = llm.generate([TEXT[5:], TEXT, TEXT[9:]], replace(SEEDED, n=3))
    assert [g.prompt_token_ids for g in crowd[3:6]] == [choices[0].prompt_token_ids] * 3
    assert [g.token_ids for g in crowd[3:6]] == [choice.token_ids for choice in choices[:3]]


def test_choices_without_a_seed_differ_and_greedy_ones_do_not(llm: LLM) -> None:
    free = llm.generate(TEXT, SamplingParams(n=3, max_tokens=12))
    assert len({choice.text for choice in free}) == 3
    same = llm.generate(TEXT, replace(GREEDY, n=3))
    assert [choice.text for choice in same] == [llm.generate(TEXT, GREEDY)[0].text] * 3


def test_the_best_of_all_choices_by_the_mean_logprob(llm: LLM) -> None:
    params = replace(SEEDED, logprobs=0)
    every = llm.generate(TEXT, replace(params, n=8))

    def mean(generation: Generation) -> float:
        assert generation.logprobs is not None
        return sum(token.logprob for token in generation.logprobs) / len(generation.logprobs)

    ranked = sorted(every, key=mean, reverse=True)
    told = llm.generate([TEXT, TEXT], replace(SEEDED, n=3, best_of=8))
    assert [g.token_ids for g in told] == 2 * [g.token_ids for g in ranked[:3]]
    assert {g.logprobs for g in told} == {None}  # nobody asked for them


@pytest.mark.parametrize("max_tokens", [0, 4])
@pytest.mark.parametrize("choices", [{"n": 3}, {"n": 2, "best_of": 8}])
def test_every_choice_is_told_what_the_model_thought_of_the_prompt(
    llm: LLM, choices: dict[str, int], max_tokens: int
) -> None:
    params = replace(SEEDED, prompt_logprobs=2, max_tokens=max_tokens)
    (alone,) = llm.generate(TEXT, params)
    assert alone.prompt_logprobs is not None
    assert len(alone.prompt_logprobs) == len(alone.prompt_token_ids)
    told = llm.generate(TEXT, replace(params, **choices))
    assert [generation.prompt_logprobs for generation in told] == [alone.prompt_logprobs] * choices["n"]


def test_a_stop_string_ends_its_own_choice(llm: LLM) -> None:
    free = llm.generate(TEXT, replace(SEEDED, n=3, max_tokens=40))
    stop = free[1].text[5:9]
    choices = llm.generate(TEXT, replace(SEEDED, n=3, max_tokens=40, stop=(stop,)))
    for choice, whole in zip(choices, free, strict=True):
        assert choice.text == whole.text.split(stop)[0]
    assert choices[1].finish_reason == "stop"
    assert "length" in {choice.finish_reason for choice in choices}


def test_a_chat_is_one_answer(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(RequestError, match="n is 2"):
        llm.chat(messages, SamplingParams(n=2))
    assert llm.chat(messages, SamplingParams(best_of=3, max_tokens=4)).text


def test_ctrl_c_leaves_no_choice_behind(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    Meddler(llm, monkeypatch, 1, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[1] * 1500], SamplingParams(n=5))


def test_each_answer_says_why_its_prompt_missed(llm: LLM) -> None:
    prompt = llm.tokenizer.encode(TEXT)
    first, second, isolated = (
        llm.generate(prompt, SamplingParams(temperature=0.0, max_tokens=1), cache_salt=salt)[0].misses
        for salt in (None, None, "eve")
    )
    assert first is not None
    assert second is not None
    assert isolated is not None
    rest = len(prompt) - 1
    assert first.tokens == {MissReason.LAST_TOKEN: 1, MissReason.COLD: rest}
    assert (second.num_hit_tokens, second.tokens) == (rest, {MissReason.LAST_TOKEN: 1})
    assert isolated.tokens[MissReason.ISOLATED] >= rest // 16 * 16


def test_choices_have_the_same_report(llm: LLM) -> None:
    choices = llm.generate([1, 2, 3], SamplingParams(max_tokens=2, n=2))
    assert choices[0].misses is choices[1].misses is not None

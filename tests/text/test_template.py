from __future__ import annotations

import copy
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models

from headstart.errors import CorruptModelError, ModelNotFoundError, RequestError
from headstart.text import ChatTemplate

GOLDEN = Path(__file__).parent / "golden"
CONVERSATIONS = json.loads((GOLDEN / "conversations.json").read_text(encoding="utf-8"))
CASES = [(file.parent.name, file.stem) for file in sorted(GOLDEN.glob("*/*.txt"))]
USER = [{"role": "user", "content": "hi"}]
NAMED = {"bos_token": "<s>", "eos_token": "</s>"}


def source(name: str) -> str:
    return (GOLDEN / name / "template.jinja").read_text(encoding="utf-8")


def golden(name: str, case: str) -> str:
    return (GOLDEN / name / f"{case}.txt").read_bytes().decode()


@pytest.fixture(scope="session")
def directory_of(smollm2: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Model directories that hold the golden templates, by name."""

    def directory(name: str) -> Path:
        if name == "smollm2":
            return smollm2.tokenizer_dir
        path = tmp_path_factory.mktemp(name)
        library = tokenizers.Tokenizer(models.BPE())
        library.add_special_tokens(list(NAMED.values()))
        library.save(str(path / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": source(name), **NAMED}
        (path / "tokenizer_config.json").write_text(json.dumps(config))
        return path

    return directory


@pytest.mark.parametrize(("name", "case"), CASES)
def test_golden_prompts(directory_of: Any, name: str, case: str) -> None:
    template = ChatTemplate.from_directory(directory_of(name))
    assert template is not None
    conversation = copy.deepcopy(CONVERSATIONS[case])
    assert template.render(**conversation, date_string="26 Jul 2026") == golden(name, case)
    assert conversation == CONVERSATIONS[case], "render changed what it was given"


@pytest.mark.parametrize(("name", "case"), CASES)
def test_transformers_gives_the_same_prompts(directory_of: Any, name: str, case: str) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(directory_of(name))
    conversation = CONVERSATIONS[case]
    rendered = theirs.apply_chat_template(
        conversation["messages"],
        tools=conversation.get("tools"),
        add_generation_prompt=conversation["add_generation_prompt"],
        tokenize=False,
        date_string="26 Jul 2026",
    )
    assert rendered == golden(name, case)


def test_the_clock_can_be_set() -> None:
    template = ChatTemplate(source("dated"), named=NAMED, now=lambda: datetime(2026, 7, 26))
    assert template.render(**CONVERSATIONS["question"]) == golden("dated", "question")


def test_variables_override_named_tokens_but_not_the_request() -> None:
    template = ChatTemplate("{{ bos_token }}{{ thinking }}{{ messages[0].content }}", named=NAMED)
    assert template.render(USER, bos_token="<B>", thinking=False) == "<B>Falsehi"


def test_text_parts_are_joined_by_line_breaks() -> None:
    template = ChatTemplate("{{ messages[0].content }}|{{ messages[0].name }}")
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": ""}, {"type": "text", "text": "two"}]
    assert template.render([{"role": "user", "name": "Ann", "content": parts}]) == "one\n\ntwo|Ann"


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("hi", r"messages\[1\] must be an object with a role"),
        ({"content": "hi"}, r"messages\[1\] must be an object with a role"),
        ({"role": "user", "content": 3}, r"messages\[1\].content must be a string or a list of text parts"),
        (
            {
                "role": "user",
                "content": [{"type": "text", "text": ""}, {"type": "image_url", "image_url": {}}],
            },
            r"messages\[1\].content\[1\] is of type 'image_url'; only 'text' is supported",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, r"messages\[1\].content\[0\] must be"),
        ({"role": "user", "content": ["hi"]}, r"messages\[1\].content\[0\] must be"),
    ],
)
def test_content_of_another_kind_is_the_callers_mistake(message: Any, sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence) as caught:
        ChatTemplate("{{ messages }}").render([*USER, message])
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ nothing.at.all }}", "'nothing' is undefined"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ nothing | tojson }}", "not JSON serializable"),
        ("{{ messages[0].__class__.__mro__ }}", "unsafe"),
        ("{{ ''['__class__']['__mro__'] }}", "unsafe"),
        ("{{ '{0.__class__.__mro__}'.format(1) }}", "unsafe"),
        ("{{ raise_exception.__globals__['json'] }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages[0].update(role='system') }}", "unsafe"),
        ("{% for i in range(1000000) %}{% endfor %}", "too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_a_template_that_fails_or_reaches_out_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(RequestError, match=f"cannot render these messages: .*{sentence}") as caught:
        ChatTemplate(text).render(USER)
    assert caught.value.param == "messages"


def test_a_template_can_refuse_an_order_of_roles() -> None:
    with pytest.raises(RequestError, match="the user comes first; message 1 is from system"):
        ChatTemplate(source("strict"), named=NAMED).render(**CONVERSATIONS["system"])


def test_a_generation_block_is_a_scope() -> None:
    template = ChatTemplate("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}")
    assert template.render(USER) == "21"


def test_tools_choose_their_own_template() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "{{ tools | length }} tools"})
    assert template.render(USER) == "plain"
    assert template.render(USER, tools=[{"type": "function"}]) == "1 tools"


def test_a_model_without_a_template_has_none(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    assert ChatTemplate.from_directory(tmp_path) is None


def test_the_jinja_files_take_the_place_of_the_config(tmp_path: Path) -> None:
    listed = [{"name": "default", "template": "old"}, {"name": "tool_use", "template": "old tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": listed, "bos_token": "<s>"}))
    template = ChatTemplate.from_directory(tmp_path)
    assert template is not None
    assert [template.render(USER), template.render(USER, tools=[])] == ["old", "old tools"]

    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}new\n")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("new tools")
    template = ChatTemplate.from_directory(tmp_path)
    assert template is not None
    assert [template.render(USER), template.render(USER, tools=[])] == ["<s>new", "new tools"]


@pytest.mark.parametrize(
    ("chat_template", "sentence"),
    [
        ("{% for message in messages %}", "'default' is broken: "),
        ("{{ message | no_such_filter }}", "'default' is broken: "),
        (["text"], "must be a string or a list of named, distinct templates"),
        ([{"name": "a", "template": "x"}, {"name": "a", "template": "y"}], "distinct"),
        ([{"name": "rag", "template": "x"}], "names its chat templates rag; one of them must be 'default'"),
        (7, "must be a string or a list"),
    ],
)
def test_a_broken_template_is_found_when_it_is_read(
    tmp_path: Path, chat_template: Any, sentence: str
) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": chat_template}))
    with pytest.raises(CorruptModelError, match=sentence):
        ChatTemplate.from_directory(tmp_path)


def test_no_directory_no_template(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="is not a directory"):
        ChatTemplate.from_directory(tmp_path / "absent")


FOREVER = {
    "loops of ranges": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops that speak": "{% for i in range(9999) %}{% for j in range(99999) %}a{% endfor %}{% endfor %}",
    "loops without calls": (
        "{% set r = range(99999) %}{% for i in r %}{% for j in r %}{% for k in r if false %}{% endfor %}"
        "{% endfor %}{% endfor %}"
    ),
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive loops": (
        "{% set r = range(50) %}{% for i in r recursive %}{% if loop.depth < 50 %}{{ loop(r) }}{% endif %}"
        "{% endfor %}"
    ),
}


@pytest.mark.parametrize("text", FOREVER.values(), ids=FOREVER)
def test_a_template_that_would_take_forever_is_broken_off(text: str) -> None:
    template = ChatTemplate(text, seconds=0.05)
    for _ in range(2):  # each time anew
        with pytest.raises(RequestError, match=r"takes longer than 0\.05 seconds"):
            template.render(USER)


def test_a_prompt_without_end_is_broken_off() -> None:
    template = ChatTemplate(
        "{% for i in range(99999) %}{{ messages[0].content }}{% endfor %}", max_length=1000
    )
    with pytest.raises(RequestError, match="more than 1,000 characters"):
        template.render(USER)


@pytest.mark.parametrize(
    "text",
    [
        "{{ 'a' * 10**12 }}",
        "{{ 10**12 * 'a' }}",
        "{{ [1] * 10**12 }}",
        "{{ 10 ** (10 ** 10) }}",
        "{% set n = namespace(x=9) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    ],
)
def test_a_product_beyond_reason_is_not_computed(text: str) -> None:
    with pytest.raises(RequestError, match=r"the result of \*\*? is too large"):
        ChatTemplate(text).render(USER)


def test_products_within_reason_are() -> None:
    assert (
        ChatTemplate(
            "{{ 'ab' * 2 }} {{ 2 * 'ab' }} {{ [1] * 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 1.5 * 2 }}"
        ).render(USER)
        == "abab abab [1, 1] 1024 0.5 3.0"
    )


def test_a_look_at_the_clock_is_not_seen_in_the_prompt() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% if loop.index == 3 %}{% break %}{% endif %}"
        "|{{ loop.length }}{{ loop.last }}{% for c in m.content recursive %}{{ c }}{% endfor %}"
        "{% else %}x{% endfor %}"
    )
    assert template.render(USER * 4) == "|4Falsehi|4Falsehi"


def test_a_reason_is_no_novel() -> None:
    with pytest.raises(RequestError) as caught:
        ChatTemplate("{{ raise_exception(messages[0].content) }}").render(
            [{"role": "user", "content": "a" * 10**6}]
        )
    assert len(str(caught.value)) < 400

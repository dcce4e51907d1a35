import pytest

from headstart.lab.explain.finding import FindingKind
from headstart.lab.prompts.placeholders import fate_of, find_placeholders


@pytest.mark.parametrize(
    ("text", "expressions"),
    [
        ("Hi {name}, {user.name!r:>10} and {items[0]}", ["name", "user.name", "items[0]"]),
        ("Hi {{ name }}, {{{raw}}} and {{ user.name | upper }}", ["name", "raw", "user.name | upper"]),
        ("Hi ${name} and ${user.id}", ["name", "user.id"]),
        ("Hi %(name)s, 100 % (sure)", ["name"]),
        ("Hi <%= name %>", ["name"]),
        ("{datetime.now():%H:%M} {now()} {uuid.uuid4()}", ["datetime.now()", "now()", "uuid.uuid4()"]),
        ("{# no #}{% if x %}{{ y }}{% endif %}{{! no }}{{#s}}{{/s}}", ["y"]),
        ('{"a": 1, "b": {"c": []}} {} {0} { x }', []),
        ("{{ doubled }} and {single}", ["doubled"]),
    ],
)
def test_placeholders_of_all_dialects(text: str, expressions: list[str]) -> None:
    found = find_placeholders(text)
    assert [one.expression for one in found] == expressions
    assert all(one.expression in text[one.start : one.end] for one in found)


@pytest.mark.parametrize(
    ("expression", "fate"),
    [
        ("current_date", FindingKind.CLOCK),
        ("now().isoformat()", FindingKind.CLOCK),
        ("createdDatetime", FindingKind.CLOCK),
        ("when:%Y-%m", FindingKind.CLOCK),
        ("uuid4()", FindingKind.UUID),
        ("requestId", FindingKind.REQUEST_ID),
        ("session.id", FindingKind.REQUEST_ID),
        ("turn", FindingKind.COUNTER),
        ("user.name", FindingKind.USER_NAME),
        ("user_email", FindingKind.USER_NAME),
        ("firstName", FindingKind.USER_NAME),
        ("random.random()", FindingKind.OTHER_VARIABLE),
        ("retrieved_docs", "documents"),
        ("context", "documents"),
        ("user_input", "question"),
        ("question", "question"),
        ("few_shot_examples", "examples"),
        ("format_instructions", "constant"),
        ("tool_names", "constant"),
        ("company_name", "constant"),
        ("zebra", "unknown"),
    ],
)
def test_a_name_tells_what_it_will_be(expression: str, fate: object) -> None:
    assert fate_of(expression) == fate


def test_a_loops_variable_is_what_it_runs_over() -> None:
    text = "{% for d in documents %}{{ d.text }}{% endfor %}{% for x in tools %}{{ x }}{% endfor %}"
    assert [one.fate for one in find_placeholders(text)] == ["documents", "constant"]

from itertools import pairwise

import pytest

from headstart.lab.explain.finding import FindingKind
from headstart.lab.prompts.variables import classify, find_variables

VARIABLE = {
    FindingKind.CLOCK: {
        "Logged at 2026-12-01T12:20:52.123Z by the gateway": "2026-12-01T12:20:52.123Z",
        "The time is 2026-12-01 12:20:52+00:00.": "2026-12-01 12:20:52+00:00",
        "stamp 20261201T122052Z": "20261201T122052Z",
        "Today is 2026-12-01.": "2026-12-01",
        "Date: Tue, 01 Dec 2026 12:20:52 GMT\n": "Tue, 01 Dec 2026 12:20:52 GMT",
        "Tue Dec  1 12:20:52 UTC 2026": "Tue Dec  1 12:20:52 UTC 2026",
        "Today is Tuesday, December 1st, 2026, be kind": "Tuesday, December 1st, 2026",
        "It is December 1, 2026 at 2:03 pm.": "December 1, 2026 at 2:03 pm",
        "Heute ist der 1. Dezember 2026.": "1. Dezember 2026",
        "le 14 juillet 2026 à 12:20": "14 juillet 2026 à 12:20",
        "Current date: 12/31/2026": "12/31/2026",
        "Stand: 31.12.2026 12:20": "31.12.2026 12:20",
        "Today Date: 26 Jul 2024\n": "26 Jul 2024",
        "Current time: 14:03": "14:03",
        "It is Tuesday.": "Tuesday",
        "Current year: 2026": "2026",
        "now=1796127652": "1796127652",
        "timestamp: 1796127652123": "1796127652123",
        "at 1796127652.25 seconds": "1796127652.25",
        "[14:03:59] new request": "14:03:59",
    },
    FindingKind.UUID: {
        "request 9f1c2d3e-4b5a-4678-9abc-def012345678 follows": "9f1c2d3e-4b5a-4678-9abc-def012345678",
        '{"id":"9F1C2D3E-4B5A-4678-9ABC-DEF012345678"}': "9F1C2D3E-4B5A-4678-9ABC-DEF012345678",
        "Trace id: 9f1c2d3e-4b5a-4678-9abc-def012345678": "9f1c2d3e-4b5a-4678-9abc-def012345678",
    },
    FindingKind.REQUEST_ID: {
        "served as req_8f3k2j1h9x": "8f3k2j1h9x",
        "see chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT": "B9MBs8CjcvOU2jLn4n570S5qMJKcT",
        "the call toolu_01A09q90qw90lq917835lq9": "01A09q90qw90lq917835lq9",
        "trace 4bf92f3577b34da6a3ce929d0e0e4736": "4bf92f3577b34da6a3ce929d0e0e4736",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-x": "4bf92f3577b34da6a3ce929d0e0e4736",
        "job 01ARZ3NDEKTSV4RRFFQ69G5FAV now": "01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "id: V1StGXR8_Z5jdHi6B-myT": "V1StGXR8_Z5jdHi6B-myT",
        "Session ID: ab12-99": "ab12-99",
        '"request_id": "x77"': "x77",
        "ticket number: 884213": "884213",
    },
    FindingKind.COUNTER: {
        "Attempt: 3": "3",
        "This is turn 4 of 10.": "4 of 10",
        "turn #12": "12",
        "You are on attempt 2": "2",
        "Ticket #4711 is open": "4711",
        "Remaining tokens: 3,120": "3,120",
        "messages so far: 7": "7",
    },
    FindingKind.USER_NAME: {
        "User: Ada Lovelace\nYou are kind.": "Ada Lovelace",
        "username = ada_42": "ada_42",
        '"user_name": "Ada"': "Ada",
        "The user's name is Ada Lovelace.": "Ada Lovelace",
        "You are talking to Ada.": "Ada",
        "Reply to ada@lovelace.org soon": "ada@lovelace.org",
        "user id: 4711": "4711",
    },
    FindingKind.OTHER_VARIABLE: {
        "from 192.168.17.4 over": "192.168.17.4",
        "from 2001:db8::8a2e:370:7334 over": "2001:db8::8a2e:370:7334",
        "key A8fK2mQ9zL4xR7tB1c": "A8fK2mQ9zL4xR7tB1c",
    },
}
CONSTANT = [
    "You are a helpful assistant. Answer in at most 3 sentences, and never guess.",
    "Python 3.11.4, CUDA 12.8, version 1.2.3.4 and v2024.01.15 are supported.",
    "Use gpt-4o-2024-08-06 or claude-3-5-sonnet-20241022, or Llama-3.2-3B-Instruct-Q4_K_M.gguf.",
    "Knowledge cutoff: 2023-10-01. Released 2024-02-01.",
    "anthropic-version: 2023-06-01",
    "The price is $1,599.99, or 1.599,99 €, plus 19 % tax.",
    "Step 1: read the question. Step 2: answer it. See chapter 12, page 345.",
    "for i in range(1024): total += i * 0.25  # 64 * 1024 ** 2",
    "0xDEADBEEFCAFEBABE is a magic number; #ff8800 is orange.",
    "User: What is the capital of France?\nAssistant: Paris.",
    "User: Good Morning\nAssistant: Good morning!",
    "Your name is Aria. You may say that it is sunny, or that today is a good day.",
    "Write to support@acme.com or user@example.com.",
    "Dates are in ISO format, e.g. 2024-01-31, times such as 14:03:59.",
    "Listen on 127.0.0.1:8000 or 0.0.0.0; the subnet is 10.0.0.0/8.",
    "We open 9:00 to 17:00. John 3:16. The ratio is 16:9 and the score 2:1.",
    "getUserByIdV2AndName3 and Qwen3MoeForCausalLM and test_prefix_cache_hit_rate_1024",
    "max_attempts=3, retries: 5, timeout: 30, max_tokens: 4096, temperature: 0.7",
    "In May 1968 and in the summer of 1776, on July 4, 1776, it may march on.",
    "The function takes a request and a session; the user name is required.",
    '{"type":"object","properties":{"date":{"type":"string","format":"date"},"user_name":{"type":"string"}}}',
    "internationalization acknowledgements Counterrevolutionaries aaaaaaaaaaaaaaaaaaaa 1111111111111111",
    "std::vector<int>::iterator it; a::b::c; http://localhost:8080/v1/chat/completions",
    "digest sha256:4bf92f3577b34da6a3ce929d0e0e4736aa",
    "The nil id is 00000000-0000-0000-0000-000000000000.",
    "call_function and user_preferences and run_12 and thread_pool; session is open",
    'self.now = 100.0; self.counter = 0; step = 1; {"timestamp": 0}; USER_NAME = Kind.NAME',
    "time: 3.5 s, date: required",
    "Call 555-123-4567 or +49 30 1234567.",
]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [(kind, text, value) for kind, texts in VARIABLE.items() for text, value in texts.items()],
)
def test_what_varies_is_found_whole_and_named(kind: FindingKind, text: str, value: str) -> None:
    [variable] = find_variables(text)
    assert (variable.kind, text[variable.start : variable.end]) == (kind, value)


@pytest.mark.parametrize("text", CONSTANT)
def test_prose_code_versions_and_prices_stay(text: str) -> None:
    assert [text[found.start : found.end] for found in find_variables(text)] == []


def test_several_are_in_order_and_apart() -> None:
    text = "User: Ada Lovelace\n[2026-12-01 12:20:52] request_id=abc123 attempt: 2"
    found = find_variables(text)
    assert [variable.kind for variable in found] == [
        FindingKind.USER_NAME,
        FindingKind.CLOCK,
        FindingKind.REQUEST_ID,
        FindingKind.COUNTER,
    ]
    assert all(a.end <= b.start for a, b in pairwise(found))


def test_a_bare_day_may_be_history_and_a_labelled_one_is_not() -> None:
    [bare] = find_variables("The treaty of 2019-05-17 holds.")
    [labelled] = find_variables("Current date: 2019-05-17")
    assert (bare.certain, labelled.certain) == (False, True)


@pytest.mark.parametrize(
    ("span", "before", "after", "kind"),
    [
        ("01", "Today is 2026-12-", "T12:00:00Z. Be kind", FindingKind.CLOCK),
        ("52", "12:20:", " UTC", FindingKind.CLOCK),
        ("Tuesday", "", "", FindingKind.CLOCK),
        (" 14:03", "open ", "", FindingKind.CLOCK),
        ("def012", "9f1c2d3e-4b5a-4678-9abc-", "345678", FindingKind.UUID),
        ("7", "attempt: ", "\n", FindingKind.COUNTER),
        ("Grace Hopper", "The user's name is ", ".", FindingKind.USER_NAME),
        ("k2j1", "req_8f3", "h9x", FindingKind.REQUEST_ID),
        ("bananas", "I like ", " a lot", FindingKind.OTHER_VARIABLE),
        ("", "", "", FindingKind.OTHER_VARIABLE),
    ],
)
def test_a_span_is_classified_by_what_surrounds_it(
    span: str, before: str, after: str, kind: FindingKind
) -> None:
    assert classify(span, before, after) is kind


def test_long_and_hostile_texts_take_linear_time() -> None:
    # Not timed: a pattern that backtracks would run into the suite's limit for one test.
    for unit in (
        "1",
        "a1",
        "1-",
        "12:",
        "today is ",
        "user: Ada ",
        "id: ",
        "a.b@",
        "Mon, ",
        "ab12cd:",
        "date: may. ",
    ):
        find_variables("request: " + unit * (50_000 // len(unit)))

"""Request logs with one fault each, and the same traffic without it: chats as assistants really send them."""

from __future__ import annotations

import codecs
import json
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from headstart.lab.explain.finding import FindingKind

Body = dict[str, Any]
_WORDS = """
amber anchor apron basket beacon blanket bottle bramble bridge bucket button cabin candle canvas
carpet castle cellar chimney cinder clover copper cotton cradle crystal curtain dagger desert drawer
engine fabric falcon feather fiddle flannel forest fountain garden garnet ginger goblet granite
hammer harbor harvest hollow island ivory jacket juniper kettle ladder lantern lattice leather lemon
linen magnet mantle marble meadow mirror mitten monsoon mortar needle nettle nickel oatmeal orchard
oyster paddle parcel pebble pepper pigeon pillow planet pocket puddle quarry rabbit ribbon ripple
saddle saffron sandal satchel shelter shovel silver socket spindle stable summit tavern teapot
thimble thunder timber trellis tunnel turnip valley velvet vessel violin walnut warden willow window
winter yarrow zephyr
""".split()  # noqa: SIM905 - words are read more easily so
_VERBS = """
carries covers follows guards holds keeps leaves marks needs opens reaches shapes turns warms
""".split()  # noqa: SIM905 - words are read more easily so
_NAMES = """
Ada Boris Chidi Dagny Elif Farouk Greta Hiro Imani Jonas Katya Lars Mei Nadia Omar Priya Quinn Rosa
""".split()  # noqa: SIM905 - words are read more easily so


class Writer:
    """Prose from a seed: every sentence is new."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def choice(self, things: list[str]) -> str:
        return self.random.choice(things)

    def sentence(self) -> str:
        one, two, three, four = self.random.choices(_WORDS, k=4)
        return f"The {one} {self.random.choice(_VERBS)} the {two} {three} near a {four}."

    def prose(self, num_sentences: int) -> str:
        return " ".join(self.sentence() for _ in range(num_sentences))

    def lines(self, count: int) -> list[str]:
        return [f"- {self.sentence()}" for _ in range(count)]

    def question(self) -> str:
        return f"{self.random.choice(_WORDS).title()}: why {self.prose(self.random.randint(1, 4))}"

    def tools(self, count: int) -> list[dict[str, Any]]:
        return [
            {
                "type": "function",
                "function": {
                    "name": f"{one}_{two}",
                    "description": self.prose(2),
                    "parameters": {
                        "type": "object",
                        "properties": {
                            name: {"type": "string", "description": self.sentence()}
                            for name in self.random.sample(_WORDS, 3)
                        },
                    },
                },
            }
            for one, two in (self.random.sample(_WORDS, 2) for _ in range(count))
        ]


def words_of(body: Body) -> list[str]:
    """All texts of a body that a person or a program wrote."""
    return [*(message["content"] for message in body["messages"]), *map(json.dumps, body.get("tools", []))]


def disguised(bodies: list[Body]) -> list[Body]:
    """The same in letters that make no English words, so that no sentence of ours has them by chance."""

    def of(value: Any) -> Any:
        match value:
            case str():
                return codecs.encode(value, "rot13").replace("guvax>", "think>")
            case dict():
                return {of(name): of(each) for name, each in value.items()}
            case list():
                return [of(each) for each in value]
        return value

    return [
        {
            **body,
            "messages": [{**message, "content": of(message["content"])} for message in body["messages"]],
            **({"tools": of(body["tools"])} if "tools" in body else {}),
        }
        for body in bodies
    ]


@dataclass(frozen=True)
class FaultyLog:
    """``bodies`` have one fault, of this ``kind``; ``healed`` are the same requests without it."""

    kind: FindingKind
    bodies: list[Body]
    healed: list[Body]


def chat(system: str, *turns: str, **more: Any) -> Body:
    """A body; turns are the user's and the assistant's, one after the other."""
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": turn} for index, turn in enumerate(turns)]
    return {"model": "any", "messages": [{"role": "system", "content": system}, *messages], **more}


def clean(seed: int, count: int = 60) -> list[Body]:
    """One system prompt and everybody's own question."""
    writer = Writer(seed)
    system = writer.prose(40)
    return [chat(system, writer.question()) for _ in range(count)]


def clean_talks(seed: int, talks: int = 15, turns: int = 4) -> list[Body]:
    """Conversations that grow, taking turns."""
    writer = Writer(seed)
    system = writer.prose(30)
    said: list[list[str]] = [[] for _ in range(talks)]
    bodies = []
    for _ in range(turns):
        for one in said:
            one.append(writer.question())
            bodies.append(chat(system, *one))
            one.append(writer.prose(4))
    return bodies


def varied(
    seed: int, kind: FindingKind, value: Callable[[Writer, int], str], *, behind: int = 40, count: int = 60
) -> FaultyLog:
    """A value that changes behind the system prompt's first sentences, and ``behind`` sentences after it."""
    writer = Writer(seed)
    head, tail = writer.prose(2), writer.prose(behind)
    bodies, healed = [], []
    for number in range(count):
        question, text = writer.question(), value(writer, number)
        bodies.append(chat(f"{head}\n{text}\n{tail}", question))
        healed.append(chat(f"{head}\n\n{tail}", f"{question}\n{text}"))
    return FaultyLog(kind, bodies, healed)


def _clock(_writer: Writer, number: int) -> str:
    now = datetime(2026, 3, 5, 9, 58, 12) + timedelta(seconds=37 * number)
    return f"Current time: {now:%Y-%m-%d %H:%M:%S} UTC"


def _uuid(writer: Writer, _number: int) -> str:
    return f"Trace {uuid.UUID(int=writer.random.getrandbits(128), version=4)}"


def _request_id(writer: Writer, _number: int) -> str:
    return f"Request id: req_{writer.random.getrandbits(64):016x}"


def _user(writer: Writer, _number: int) -> str:
    return f"User name: {writer.random.choice(_NAMES)} {writer.random.choice(_WORDS).title()}"


def _counter(_writer: Writer, number: int) -> str:
    return f"Requests so far: {1204 + number}"


def clock(seed: int) -> FaultyLog:
    return varied(seed, FindingKind.CLOCK, _clock)


def uuids(seed: int) -> FaultyLog:
    return varied(seed, FindingKind.UUID, _uuid)


def request_ids(seed: int) -> FaultyLog:
    return varied(seed, FindingKind.REQUEST_ID, _request_id)


def user_names(seed: int) -> FaultyLog:
    return varied(seed, FindingKind.USER_NAME, _user)


def counters(seed: int) -> FaultyLog:
    return varied(seed, FindingKind.COUNTER, _counter)


def question_first(seed: int, count: int = 40) -> FaultyLog:
    """The question in front of the document that it is about."""
    writer = Writer(seed)
    system, document = writer.prose(3), writer.prose(60)
    bodies, healed = [], []
    for _ in range(count):
        question = writer.question()
        bodies.append(chat(system, f"{question}\n\n{document}"))
        healed.append(chat(system, f"{document}\n\n{question}"))
    return FaultyLog(FindingKind.OTHER_VARIABLE, bodies, healed)


def shuffled_lines(seed: int, count: int = 60) -> FaultyLog:
    """A system prompt whose rules come in any order."""
    writer = Writer(seed)
    head, rules, tail = writer.prose(3), writer.lines(12), writer.prose(25)
    bodies, healed = [], []
    for _ in range(count):
        question = writer.question()
        mixed = writer.random.sample(rules, len(rules))
        bodies.append(chat("\n".join([head, *mixed, tail]), question))
        healed.append(chat("\n".join([head, *rules, tail]), question))
    return FaultyLog(FindingKind.SHUFFLED, bodies, healed)


def shuffled_examples(seed: int, count: int = 60) -> FaultyLog:
    """Examples as messages, in any order."""
    writer = Writer(seed)
    system = writer.prose(10)
    examples = [(writer.question(), writer.prose(3)) for _ in range(8)]
    bodies, healed = [], []
    for _ in range(count):
        question = writer.question()
        mixed = writer.random.sample(examples, len(examples))
        bodies.append(chat(system, *(turn for pair in mixed for turn in pair), question))
        healed.append(chat(system, *(turn for pair in examples for turn in pair), question))
    return FaultyLog(FindingKind.SHUFFLED, bodies, healed)


def shuffled_keys(seed: int, count: int = 60) -> FaultyLog:
    """A profile as JSON in the system prompt, whose keys come in any order."""
    writer = Writer(seed)
    head, tail = writer.prose(3), writer.prose(30)
    profile = {word: writer.sentence() for word in writer.random.sample(_WORDS, 10)}
    bodies, healed = [], []
    for _ in range(count):
        question = writer.question()
        mixed = dict(writer.random.sample(list(profile.items()), len(profile)))
        indent = 2 if seed % 2 else None
        bodies.append(chat(f"{head}\n{json.dumps(mixed, indent=indent)}\n{tail}", question))
        healed.append(chat(f"{head}\n{json.dumps(profile, indent=indent)}\n{tail}", question))
    return FaultyLog(FindingKind.SHUFFLED, bodies, healed)


def shuffled_tools(seed: int, count: int = 60) -> FaultyLog:
    """Tools in any order; for a template that writes them."""
    writer = Writer(seed)
    system, tools = writer.prose(10), writer.tools(7)
    bodies, healed = [], []
    for _ in range(count):
        question = writer.question()
        mixed = writer.random.sample(tools, len(tools))
        bodies.append(chat(system, question, tools=mixed))
        healed.append(chat(system, question, tools=tools))
    return FaultyLog(FindingKind.SHUFFLED, bodies, healed)


def spacing(seed: int, count: int = 60) -> FaultyLog:
    """Callers that build the same prompt with other white space."""
    writer = Writer(seed)
    sentences = [writer.sentence() for _ in range(45)]
    bodies, healed = [], []
    for _ in range(count):
        question = writer.question()
        blanks = writer.random.choices([" ", "  ", "\n", " \n"], weights=[8, 1, 1, 1], k=len(sentences))
        bodies.append(chat("".join(map("".join, zip(sentences, blanks, strict=True))).rstrip(), question))
        healed.append(chat(" ".join(sentences), question))
    return FaultyLog(FindingKind.DRIFT, bodies, healed)


def switches(seed: int, talks: int = 20) -> FaultyLog:
    """Conversations in which the thinking switch, at the head of the prompt, is turned at each turn."""
    writer = Writer(seed)
    bodies, healed = [], []
    for _ in range(talks):
        said: list[str] = [writer.prose(30)]
        for turn in range(4):
            body = chat("", *said)
            del body["messages"][0]
            bodies.append({**body, "chat_template_kwargs": {"enable_thinking": turn % 2 == 1}})
            healed.append({**body, "chat_template_kwargs": {"enable_thinking": False}})
            said += [writer.prose(4), writer.question()]
    return FaultyLog(FindingKind.DRIFT, bodies, healed)


def dropped_reasoning(seed: int, talks: int = 15, turns: int = 5) -> FaultyLog:
    """Agents that keep the last answer's thoughts and drop those of the ones before."""
    writer = Writer(seed)
    system = writer.prose(15)
    bodies, healed = [], []
    for _ in range(talks):
        kept: list[str] = [writer.question()]
        dropped: list[str] = list(kept)
        for _ in range(turns):
            bodies.append(chat(system, *dropped))
            healed.append(chat(system, *kept))
            said, question = writer.prose(10), writer.question()
            thought = f"<think>\n{writer.prose(5)}\n</think>\n\n{said}"
            dropped = [
                turn.partition("</think>\n\n")[2] or turn if index % 2 else turn
                for index, turn in enumerate(dropped)
            ]
            kept += [thought, question]
            dropped += [thought, question]
    return FaultyLog(FindingKind.REASONING_DROPPED, bodies, healed)

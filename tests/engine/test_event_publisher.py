"""The publisher, over real sockets.  A batch that was published is found in every replay asked for later."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import zmq

from headstart.cache.events import AllBlocksCleared, BlockRemoved, KVEvent
from headstart.config import KVEventsConfig
from headstart.engine import event_publisher
from headstart.engine.event_publisher import INT_HASHES, ZmqPublisher, open_publisher
from headstart.engine.event_wire import decode
from headstart.errors import ConfigError

EPOCH = 1000
END = b"\xff" * 8
PATIENCE_MS = 60_000


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
    yield context
    context.destroy(linger=0)


Context = zmq.Context[zmq.Socket[bytes]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., ZmqPublisher]]:
    made: list[ZmqPublisher] = []

    def start(**options: Any) -> ZmqPublisher:
        files = {"endpoint": f"ipc://{tmp_path}/pub", "replay_endpoint": f"ipc://{tmp_path}/replay"}
        publisher = ZmqPublisher(KVEventsConfig(**files | options), EPOCH)
        made.append(publisher)
        return publisher

    yield start
    for publisher in made:
        publisher.close()


def removal(number: int, block_hash: int = 1) -> list[KVEvent]:
    return [BlockRemoved((block_hash,), sequence=number)]


def replay(
    context: Context, endpoint: str | None, start: int = 0, *, envelope: tuple[bytes, ...] = (b"",)
) -> list[tuple[int, bytes]]:
    """What a replay answers; a REQ socket would put an empty frame around what it sends and gets."""
    assert endpoint is not None
    with closing(context.socket(zmq.DEALER)) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(endpoint)
        dealer.send_multipart([*envelope, start.to_bytes(8, "big")])
        batches = []
        while True:
            frames = dealer.recv_multipart()
            assert tuple(frames[: len(envelope)]) == envelope
            number, payload = frames[len(envelope) :]
            if number == END:
                assert payload == b""
                return batches
            batches.append((int.from_bytes(number, "big"), payload))


def numbers(batches: list[tuple[int, bytes]]) -> list[int]:
    return [number for number, _ in batches]


def test_an_epoch_begins_with_nothing_and_goes_on_in_order(
    context: Context, make: Callable[..., ZmqPublisher]
) -> None:
    publisher = make()
    publisher.publish(removal(EPOCH + 1))
    publisher.publish(removal(EPOCH + 2))
    batches = replay(context, publisher.replay_endpoint)
    assert numbers(batches) == [EPOCH, EPOCH + 1, EPOCH + 2]
    assert decode(batches[0][1], sequence=EPOCH).events == [AllBlocksCleared(sequence=EPOCH)]
    assert decode(batches[2][1], sequence=EPOCH + 2).events == removal(EPOCH + 2)
    assert decode(batches[0][1]).data_parallel_rank == 0


def test_a_replay_begins_where_it_is_asked_to(context: Context, make: Callable[..., ZmqPublisher]) -> None:
    publisher = make()
    for number in range(EPOCH + 1, EPOCH + 400):
        publisher.publish(removal(number))
    assert numbers(replay(context, publisher.replay_endpoint, EPOCH + 300)) == [*range(1300, 1400)]
    assert replay(context, publisher.replay_endpoint, EPOCH + 400) == []
    assert numbers(replay(context, publisher.replay_endpoint, EPOCH + 399, envelope=())) == [1399]


def test_only_the_last_batches_are_kept(context: Context, make: Callable[..., ZmqPublisher]) -> None:
    publisher = make(buffer_steps=3)
    for number in range(EPOCH + 1, EPOCH + 10):
        publisher.publish(removal(number))
    assert numbers(replay(context, publisher.replay_endpoint)) == [1007, 1008, 1009]


def test_a_request_that_is_none_is_passed_over(context: Context, make: Callable[..., ZmqPublisher]) -> None:
    publisher = make()
    assert publisher.replay_endpoint is not None
    with closing(context.socket(zmq.DEALER)) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(publisher.replay_endpoint)
        for frames in ([b""], [b"seven b"], [b"", b"", b"12345678"], [b"x" * 100_000]):
            dealer.send_multipart(frames)
        dealer.send_multipart([b"", (0).to_bytes(8, "big")])
        assert dealer.recv_multipart() == [b"", EPOCH.to_bytes(8, "big"), dealer_payload(context, publisher)]


def dealer_payload(context: Context, publisher: ZmqPublisher) -> bytes:
    return replay(context, publisher.replay_endpoint)[0][1]


def listen(publisher: ZmqPublisher, subscriber: zmq.Socket[bytes]) -> list[bytes]:
    """Publish until the subscriber, who comes when it comes, has heard something; what it was."""
    number = EPOCH
    while not subscriber.poll(10):
        number += 1
        publisher.publish(removal(number, block_hash=number))
    return subscriber.recv_multipart()


def test_a_subscriber_gets_topic_number_and_payload(
    context: Context, make: Callable[..., ZmqPublisher]
) -> None:
    publisher = make(topic="kv@pod@model")
    with closing(context.socket(zmq.SUB)) as subscriber:
        subscriber.setsockopt(zmq.SUBSCRIBE, b"kv@")
        subscriber.connect(publisher.endpoint)
        topic, number, payload = listen(publisher, subscriber)
    assert topic == b"kv@pod@model"
    sequence = int.from_bytes(number, "big")
    # The first batch of all, if the subscription was quicker than that.
    beginning: list[KVEvent] = [AllBlocksCleared(sequence=EPOCH)]
    expected = beginning if sequence == EPOCH else removal(sequence, block_hash=sequence)
    assert decode(payload, sequence=sequence).events == expected


def test_an_address_without_a_wildcard_is_connected_to(
    context: Context, make: Callable[..., ZmqPublisher]
) -> None:
    with closing(context.socket(zmq.SUB)) as subscriber:
        subscriber.setsockopt(zmq.SUBSCRIBE, b"")
        subscriber.bind("tcp://127.0.0.1:*")
        address = subscriber.getsockopt_string(zmq.LAST_ENDPOINT)
        publisher = make(endpoint=address, replay_endpoint=None)
        assert publisher.replay_endpoint is None
        topic, _, _ = listen(publisher, subscriber)
    assert topic == b""


def test_a_subscriber_that_never_reads_holds_nobody_up(
    context: Context, make: Callable[..., ZmqPublisher]
) -> None:
    publisher = make(hwm=1)
    with closing(context.socket(zmq.SUB)) as subscriber:
        subscriber.setsockopt(zmq.SUBSCRIBE, b"")
        subscriber.setsockopt(zmq.RCVHWM, 1)
        subscriber.connect(publisher.endpoint)
        listen(publisher, subscriber)
        for number in range(EPOCH + 100_000, EPOCH + 105_000):
            publisher.publish([BlockRemoved(tuple(range(2**60, 2**60 + 200)), sequence=number)])
        assert numbers(replay(context, publisher.replay_endpoint, EPOCH + 100_000))[-1] == EPOCH + 104_999
    assert publisher.num_dropped == 0


def test_what_finds_the_queue_full_is_counted_and_its_number_is_missing(
    context: Context, make: Callable[..., ZmqPublisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_run = threading.Event()
    run = event_publisher._Sender.run

    def later(self: event_publisher._Sender) -> None:
        may_run.wait(PATIENCE_MS / 1000)
        run(self)

    monkeypatch.setattr(event_publisher._Sender, "run", later)
    publisher = make(max_queue_size=3)
    for number in range(EPOCH + 1, EPOCH + 20):
        publisher.publish(removal(number))  # returns, though nobody takes it
    may_run.set()
    kept = numbers(replay(context, publisher.replay_endpoint))
    assert kept == [*range(EPOCH, EPOCH + len(kept))]
    assert 3 <= len(kept) <= 4
    assert publisher.num_dropped == 20 - len(kept)
    number = EPOCH + 20
    publisher.publish(removal(number))
    while publisher.num_dropped > number - EPOCH - len(
        kept
    ):  # ZeroMQ is told in its own time that there is room
        number += 1
        publisher.publish(removal(number))
    assert numbers(replay(context, publisher.replay_endpoint))[-1] == number


@pytest.mark.parametrize("name", ["endpoint", "replay_endpoint"])
def test_a_port_in_use_is_one_sentence(name: str, make: Callable[..., ZmqPublisher]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://*:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"kv_events_config: {name} tcp://.* cannot be used: Address"):
            make(**{name: address})


def test_after_an_end_the_next_one_has_the_same_port(make: Callable[..., ZmqPublisher]) -> None:
    first = make(endpoint="tcp://127.0.0.1:*")
    address = first.endpoint
    first.close()
    first.close()
    first.publish(removal(EPOCH + 1))
    assert first.num_dropped == 1
    assert not first._thread.is_alive()
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        pass


def test_what_was_published_before_the_end_is_sent(
    context: Context, make: Callable[..., ZmqPublisher]
) -> None:
    publisher = make()
    with closing(context.socket(zmq.SUB)) as subscriber:
        subscriber.setsockopt(zmq.SUBSCRIBE, b"")
        subscriber.connect(publisher.endpoint)
        listen(publisher, subscriber)
        publisher.publish(removal(2**50))
        publisher.close()
        while int.from_bytes(subscriber.recv_multipart()[1], "big") != 2**50:
            pass


def test_without_a_wish_nothing_is_opened(tmp_path: Path) -> None:
    assert open_publisher(KVEventsConfig(), 0) is None
    assert open_publisher(KVEventsConfig(enable_kv_cache_events=True, publisher="null"), 0) is None


@pytest.mark.parametrize(("value", "kind"), [(None, int), ("1", int), ("0", bytes)])
def test_the_environment_chooses_how_hashes_are_sent(
    value: str | None, kind: type, context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(INT_HASHES, raising=False)
    if value is not None:
        monkeypatch.setenv(INT_HASHES, value)
    files = {"endpoint": f"ipc://{tmp_path}/pub", "replay_endpoint": f"ipc://{tmp_path}/replay"}
    publisher = open_publisher(KVEventsConfig(enable_kv_cache_events=True, **files), 0)
    assert publisher is not None
    with closing(publisher):
        publisher.publish([BlockRemoved((b"d" * 32,), sequence=1)])
        ((_, payload),) = replay(context, publisher.replay_endpoint, 1)
    (event,) = decode(payload).events
    assert isinstance(event, BlockRemoved)
    assert isinstance(event.block_hashes[0], kind)


def test_nonsense_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INT_HASHES, "yes")
    with pytest.raises(ConfigError, match="must be 0 or 1, not 'yes'"):
        open_publisher(KVEventsConfig(enable_kv_cache_events=True), 0)

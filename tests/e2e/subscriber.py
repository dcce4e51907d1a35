"""A program that follows a server's KV events: ``python subscriber.py ENDPOINT REPLAY_ENDPOINT``.

It prints ``heard`` when the first batch arrives by itself.  For each number on standard input it prints, once
it has taken in the batch of that number, what it believes to be cached: JSON, hash → [parent, token ids].
"""

from __future__ import annotations

import json
import sys

import zmq

from headstart.cache.events import EventReplica
from headstart.engine.event_wire import decode


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Subscriber:
    def __init__(self, endpoint: str, replay_endpoint: str) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.replica = EventReplica()
        self.live, self.again = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        self.live.setsockopt(zmq.SUBSCRIBE, b"kv@")
        self.live.connect(endpoint)
        self.again.connect(replay_endpoint)
        self.heard = False

    def catch_up(self, start: int) -> None:
        self.again.send_multipart([b"", start.to_bytes(8, "big")])
        while True:
            _, number, payload = self.again.recv_multipart()
            if number == b"\xff" * 8:
                return
            events = decode(payload, sequence=int.from_bytes(number, "big")).events
            if not self.replica.apply(events):
                self.replica.forget()
                self.replica.apply(events)

    def hear(self) -> None:
        topic, number, payload = self.live.recv_multipart()
        assert topic == b"kv@e2e@tiny"
        if not self.heard:
            say("heard")
            self.heard = True
        if not self.replica.apply(decode(payload, sequence=int.from_bytes(number, "big")).events):
            assert self.replica.next_sequence is not None
            self.catch_up(self.replica.next_sequence)

    def run(self) -> None:
        self.catch_up(0)
        poller = zmq.Poller()
        poller.register(self.live, zmq.POLLIN)
        poller.register(sys.stdin.fileno(), zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self.live in ready:
                self.hear()
            if sys.stdin.fileno() in ready:
                line = sys.stdin.readline()
                if not line:
                    return
                while (self.replica.next_sequence or 0) <= int(line):
                    self.hear()
                blocks = self.replica.blocks.items()
                say(json.dumps({key: [b.parent_block_hash, b.token_ids] for key, b in blocks}))


if __name__ == "__main__":
    Subscriber(*sys.argv[1:]).run()

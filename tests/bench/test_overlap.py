from __future__ import annotations

import itertools

from bench.overlap import SEATS, contention, conversations, dilution, questions_and_jobs
from headstart.lab.replay.routers import Routing


def test_a_row_for_each_number_of_seats() -> None:
    rows = list(contention(questions_and_jobs(num_requests=20, num_documents=2)))
    assert [row[0] for row in rows] == [str(seats) for seats in SEATS]
    assert all(row[2].endswith(" %") for row in rows)


def test_a_row_for_one_replica_and_for_each_routing() -> None:
    rows = list(dilution(conversations(num_users=4, num_turns=2)))
    assert [row[1] for row in rows] == ["", *(f"`{routing}`" for routing in Routing)]


def test_a_turn_has_all_that_was_said_before() -> None:
    traffic = conversations(num_users=2, num_turns=3).requests
    mine = [request for request in traffic if request.session == "user 0"]
    for before, after in itertools.pairwise(mine):
        assert before.output is not None
        assert after.symbols.startswith(before.symbols + before.output)

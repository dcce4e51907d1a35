from __future__ import annotations

import random

import pytest

from headstart.cache.blocks import Block, BlockPool, FreeIds, LinkedQueue
from headstart.errors import CacheError


def queue_of(count: int) -> tuple[LinkedQueue[Block], list[Block]]:
    blocks = [Block(number) for number in range(count)]
    return LinkedQueue(blocks), blocks


def ids(queue: LinkedQueue[Block]) -> list[int]:
    found = [block.block_id for block in queue]
    assert len(queue) == len(found)
    return found


def test_a_new_pool_is_all_free_in_order() -> None:
    pool = BlockPool(4)  # item 15, with ids from 0
    assert len(pool) == 4
    assert ids(pool.free) == [block.block_id for block in pool.blocks] == [0, 1, 2, 3]
    assert {(block.ref_count, block.digest, block.parent, block.pending_for) for block in pool.blocks} == {
        (0, None, None, None)
    }


@pytest.mark.parametrize(("place", "left"), [(0, [1, 2, 3]), (1, [0, 2, 3]), (2, [0, 1, 3]), (3, [0, 1, 2])])
def test_removing_keeps_the_order_of_the_rest(place: int, left: list[int]) -> None:
    queue, blocks = queue_of(4)  # item 17
    queue.remove(blocks[place])
    assert ids(queue) == left
    assert blocks[place] not in queue
    assert all(block in queue for block in blocks if block is not blocks[place])


def test_what_is_not_in_the_queue_cannot_be_taken_out() -> None:
    queue, blocks = queue_of(3)  # item 17
    queue.remove(blocks[1])
    with pytest.raises(CacheError, match=r"Block\(1, ref_count=0\) is not in the queue"):
        queue.remove(blocks[1])
    with pytest.raises(CacheError, match=r"Block\(9, ref_count=0\) is not in the queue"):
        queue.remove(Block(9))
    assert ids(queue) == [0, 2]


def test_what_is_in_the_queue_cannot_be_put_in_again() -> None:
    queue, blocks = queue_of(3)
    for put in (queue.append, lambda block: queue.prepend_all([block])):
        with pytest.raises(CacheError, match=r"Block\(0, ref_count=0\) is in the queue already"):
            put(blocks[0])
    with pytest.raises(CacheError, match="in the queue already"):
        queue.insert_after(blocks[1], blocks[2])
    assert ids(queue) == [0, 1, 2]


def test_taking_from_an_empty_queue_raises() -> None:
    queue, blocks = queue_of(1)  # item 17
    assert queue.first() is blocks[0]
    assert queue.popleft() is blocks[0]
    assert queue.first() is None
    with pytest.raises(CacheError, match="no free block is left"):
        queue.popleft()
    assert ids(queue) == []


def test_several_go_in_in_the_order_given() -> None:
    queue, blocks = queue_of(5)  # item 17
    assert [queue.popleft().block_id for _ in range(4)] == [0, 1, 2, 3]
    queue.prepend_all([blocks[2], blocks[0]])
    queue.append(blocks[3])
    assert ids(queue) == [2, 0, 4, 3]
    queue.prepend_all([])
    assert ids(queue) == [2, 0, 4, 3]


def test_one_goes_in_behind_another() -> None:
    queue, blocks = queue_of(2)
    queue.insert_after(blocks[1], Block(7))
    queue.insert_after(blocks[0], Block(8))
    assert ids(queue) == [0, 8, 1, 7]


def test_a_block_may_leave_while_the_queue_is_read() -> None:
    queue, _ = queue_of(4)
    for block in queue:
        if block.block_id % 2:
            queue.remove(block)
    assert ids(queue) == [0, 2]


def test_the_queue_agrees_with_a_list() -> None:
    dice = random.Random(0)
    blocks = [Block(number) for number in range(8)]
    queue: LinkedQueue[Block] = LinkedQueue()
    model: list[Block] = []
    for _ in range(3000):
        block = dice.choice(blocks)
        if block in model:
            if dice.random() < 0.3:
                block = queue.popleft()
                assert block is model.pop(0)
            else:
                queue.remove(block)
                model.remove(block)
        else:
            turn = dice.random()
            if turn < 0.4:
                queue.append(block)
                model.append(block)
            elif turn < 0.7 or not model:
                queue.prepend_all([block])
                model.insert(0, block)
            else:
                place = dice.choice(model)
                queue.insert_after(place, block)
                model.insert(model.index(place) + 1, block)
        assert list(queue) == model
        assert len(queue) == len(model)
        assert queue.first() is (model[0] if model else None)


def test_many_are_taken_and_put_back_at_once() -> None:
    queue, blocks = queue_of(5)
    taken = queue.take(3)
    assert [block.block_id for block in taken] == [0, 1, 2]
    assert ids(queue) == [3, 4]
    assert not any(block in queue for block in taken)
    queue.append_all([blocks[2], blocks[0]])
    assert ids(queue) == [3, 4, 2, 0]
    queue.remove_all([blocks[4], blocks[0], blocks[3]])
    assert ids(queue) == [2]
    queue.append_all([blocks[4]])
    assert [block.block_id for block in queue.take(2)] == [2, 4]
    queue.append(blocks[1])
    assert ids(queue) == [1]


def test_a_mistake_among_many_leaves_the_queue_whole() -> None:
    queue, blocks = queue_of(4)
    with pytest.raises(CacheError, match="no free block is left"):
        queue.take(5)
    assert [block.block_id for block in queue.take(2)] == [0, 1]
    for put in (queue.append_all, queue.prepend_all):
        with pytest.raises(CacheError, match=r"Block\(0, ref_count=0\) is in the queue already"):
            put([blocks[0], blocks[0]])
        queue.remove(blocks[0])
        assert ids(queue) == [2, 3]
    with pytest.raises(CacheError, match=r"Block\(1, ref_count=0\) is not in the queue"):
        queue.remove_all([blocks[2], blocks[1]])
    assert ids(queue) == [3]


def test_free_ids_go_out_at_the_front_and_come_back_at_either_end() -> None:
    free = FreeIds(5)
    assert (len(free), list(free)) == (5, [0, 1, 2, 3, 4])
    assert free.take(3) == [0, 1, 2]
    assert free.take(0) == []
    free.prepend_all([2, 0])
    free.append_all([1, 7])
    assert (len(free), list(free)) == (6, [2, 0, 3, 4, 1, 7])
    with pytest.raises(CacheError, match="no free block is left"):
        free.take(7)
    assert free.take(6) == [2, 0, 3, 4, 1, 7]

"""Six things that a prefix cache must get right, each shown on the real core and on real tensors.

    python examples/six_invariants.py

Each section does something, prints what happened, and asserts what it claims: the script ends with an error
if one of them does not hold.  Block size 4 where blocks are counted by hand; ids start at 0.
"""

from __future__ import annotations

import time

import torch

from headstart import LLM, CacheConfig, CacheRequest, KVCacheManager, Namespace, SamplingParams
from headstart.cache import Adapter, BlockCopy
from headstart.cache.hashing import block_hash_chain
from headstart.model.kv_pool import KVPool
from headstart.model.source import resolve
from headstart.model.spec import ModelSpec, read_spec

MODEL = "smollm2-135m"
A, B, C, X = [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]  # a block each


def main() -> None:
    """All six."""
    hashes_isolate_context()
    nodes_split_where_prompts_part()
    blocks_live_by_reference_count_and_age()
    a_hit_saves_time_and_arithmetic()
    namespaces_never_meet()
    a_shared_block_is_never_written()
    print("\nAll six hold.")


def hashes_isolate_context() -> None:
    """A block's digest covers everything before it, so equal tokens behind other tokens are another block."""
    title(1, "Chained hashes isolate context")
    ours, theirs = (block_hash_chain(tokens, block_size=4) for tokens in (A + B, X + B))
    print(f"  {A} {B}: {ours[0].hex()[:8]} → {ours[1].hex()[:8]}")
    print(f"  {X} {B}: {theirs[0].hex()[:8]} → {theirs[1].hex()[:8]}")
    assert ours[1] != theirs[1]
    for index in ("hash", "radix"):
        manager = KVCacheManager(CacheConfig(num_blocks=8, block_size=4, index=index))
        serve(manager, CacheRequest("first", A + B))
        same, other = cached(manager, A + B + [0]), cached(manager, X + B + [0])
        print(
            f"  {index:5}: {B} is cached; behind its own beginning {same} tokens hit, behind another {other}"
        )
        assert (same, other) == (8, 0)


def nodes_split_where_prompts_part() -> None:
    """A node of the tree is a run of blocks; where a second prompt leaves it, it is cut in two."""
    title(2, "A node splits where prompts part")
    manager = KVCacheManager(CacheConfig(num_blocks=8, block_size=4, index="radix"))
    requests = {name: CacheRequest(name, tokens) for name, tokens in (("one", A + B), ("two", A + C))}
    for name, request in requests.items():
        hit = run(manager, request)
        print(f"  {name}: {hit} tokens hit, blocks {manager.block_table(name)}")
    assert manager.block_table("one") == [0, 1]
    assert manager.block_table("two") == [0, 2]  # the node [0, 1] was cut behind its first block
    assert cached(manager, A + B + [0]) == cached(manager, A + C + [0]) == 8
    third = cached(manager, [*A, 9, 10, 0])
    print(f"  a third prompt that parts inside block 2 hits {third} tokens: 4 shared, 2 copied")
    assert third == 6
    manager.check()


def blocks_live_by_reference_count_and_age() -> None:
    """Held blocks cannot be taken; freed ones stay findable until they are the oldest, tails before heads."""
    title(3, "Reference counts and age decide how long a block lives")
    manager = KVCacheManager(CacheConfig(num_blocks=4, block_size=4))
    first, second = CacheRequest("first", A + B + [0]), CacheRequest("second", A + B + [1])
    run(manager, first)
    run(manager, second)
    print(f"  two requests share two blocks: {manager.block_table('first')}, {manager.block_table('second')}")
    manager.free(first)
    print(
        f"  one is done: blocks that can be had: {manager.free_block_ids()} (the other still holds 0 and 1)"
    )
    assert not {0, 1} & set(manager.free_block_ids())
    too_big = CacheRequest("too big", C + X)
    assert manager.allocate_slots(too_big, 8) is None, "two blocks are held, one is free: no room"
    manager.free(second)
    order = manager.free_block_ids()
    print(f"  both are done: {order}, the next victim first: block 1 goes before 0, which it builds on")
    assert order.index(1) < order.index(0)
    assert cached(manager, A + B + [2]) == 8, "freed is not forgotten"
    serve(manager, CacheRequest("stranger", C + X + [0]))
    left = cached(manager, A + B + [2])
    print(f"  a stranger took three blocks: of our 8 tokens {left} are left, from the beginning")
    assert left == 4


def a_hit_saves_time_and_arithmetic() -> None:
    """The tokens that hit are not computed: neither their products nor their attention."""
    title(4, "A hit saves the time to the first token, and the arithmetic")
    llm = LLM(MODEL, num_blocks=256)
    spec = read_spec(resolve(MODEL))
    manual = llm.tokenizer.encode("You answer questions about a coffee machine. Be brief and exact. " * 90)
    first_token = SamplingParams(temperature=0.0, max_tokens=1)
    llm.generate([[1, 2, 3]], first_token)  # the first step of all is slower
    spent = {}
    for name, question in (("cold", "How do I descale it?"), ("warm", "Why is the light red?")):
        prompt = manual + llm.tokenizer.encode(question)
        start = time.perf_counter()
        [answer] = llm.generate([prompt], first_token)
        seconds = time.perf_counter() - start
        hit, total = answer.num_cached_tokens, len(prompt)
        spent[name] = flops(spec, hit, total)
        print(
            f"  {name}: {hit:4} of {total} tokens cached, first token after {1000 * seconds:6.1f} ms, "
            f"{spent[name] / 1e9:7.2f} GFLOP"
        )
    saved = 1 - spent["warm"] / spent["cold"]
    print(f"  the hit saved {saved:.1%} of the arithmetic")
    assert saved > 0.95


def flops(spec: ModelSpec, first: int, total: int) -> int:
    """Of computing tokens ``first`` to ``total`` of a prompt, and logits for the last.

    Two for each weight and token (a multiplication and an addition); in attention two for q·k and two for
    p·v, for each head, dimension and token attended to.
    """
    attended = sum(range(first + 1, total + 1))
    width = spec.num_heads * spec.head_dim
    projections = 2 * spec.hidden_size * (width + spec.num_kv_heads * spec.head_dim)
    layer = projections + 3 * spec.hidden_size * spec.intermediate_size
    products = 2 * spec.num_layers * layer * (total - first) + 2 * spec.hidden_size * spec.vocab_size
    return products + 4 * spec.num_layers * width * attended


def namespaces_never_meet() -> None:
    """Salts and adapters are typed parts of the key: equal text in another namespace is another content."""
    title(5, "Adapters and salts are worlds of their own")
    worlds = {
        "nobody's": Namespace(),
        "salt X": Namespace(salt="X"),
        "adapter X": Namespace(adapter=Adapter("X", digest="weights 1")),
        "adapter X, new weights": Namespace(adapter=Adapter("X", digest="weights 2")),
        "adapter X, salt X": Namespace(adapter=Adapter("X", digest="weights 1"), salt="X"),
    }
    for index in ("radix", "hash"):
        manager = KVCacheManager(CacheConfig(num_blocks=16, block_size=4, index=index))
        for name, world in worlds.items():
            before = {other: cached(manager, A + B, world) for other, world in worlds.items()}
            assert before[name] == 0, f"{name} must not see what others cached"
            serve(manager, CacheRequest(name, A + B, namespace=world))
            assert cached(manager, A + B + [0], world) == 8, f"{name} must see its own"
        print(
            f"  {index:5}: the same 8 tokens were computed {len(worlds)} times, and each world hits its own"
        )


def a_shared_block_is_never_written() -> None:
    """Slots follow the block table; a fork shares all blocks and copies one only before it writes into it."""
    title(6, "Block tables map, and a shared block is copied before it is written")
    spec = read_spec(resolve(MODEL))
    device = torch.device("cpu")
    pool = KVPool(spec, num_blocks=8, block_size=4, dtype=torch.float32, device=device)
    manager = KVCacheManager(CacheConfig(num_blocks=8, block_size=4))
    parent = CacheRequest("parent", [*A, 5, 6])
    run(manager, parent)
    write(pool, manager, parent, 0)
    child = CacheRequest("child", [*A, 5, 6])
    manager.fork(parent, child)
    assert manager.block_table("child") == manager.block_table("parent")
    before = read(pool, manager, parent)
    for request, token in ((child, 70), (parent, 80)):
        request.append(token)
        grant = manager.allocate_slots(request, 1)
        assert grant is not None
        pool.copy_blocks(grant.copies)
        write(pool, manager, request, 6)
        told = ", ".join(told_copy(copy) for copy in grant.copies) or "nothing is copied"
        table = manager.block_table(request.request_id)
        print(f"  {request.request_id} writes token 6: {told}; its table is {table}")
        manager.commit_step()
    assert manager.block_table("child")[0] == manager.block_table("parent")[0]
    assert manager.block_table("child")[1] != manager.block_table("parent")[1]
    for request in (parent, child):
        now = read(pool, manager, request)
        assert torch.equal(now[:, :6], before), "what was shared is as it was"
        assert torch.equal(now, content(request, spec)), "each reads its own tokens' K, in order"
    print("  K read back through each table equals what that request wrote, all layers, bit for bit")


# What the sections share.


def title(number: int, text: str) -> None:
    """A heading."""
    print(f"\n{number}. {text}")


def run(manager: KVCacheManager, request: CacheRequest) -> int:
    """Admit the request and compute all of it in one step; it keeps its blocks.  Returns its hit."""
    hit = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, request.num_tokens - hit.num_tokens, hit) is not None
    manager.commit_step()
    return hit.num_tokens


def serve(manager: KVCacheManager, request: CacheRequest) -> None:
    """Compute the request and free it."""
    run(manager, request)
    manager.free(request)


def cached(manager: KVCacheManager, tokens: list[int], namespace: Namespace | None = None) -> int:
    """How many of the tokens a request for them would find."""
    probe = CacheRequest("probe", tokens, namespace=namespace or Namespace())
    return manager.get_computed_blocks(probe).num_tokens


def content(request: CacheRequest, spec: ModelSpec) -> torch.Tensor:
    """A stand-in for K [layers, tokens, heads, dim] that tells token, position and layer apart."""
    tokens = torch.tensor(request.token_ids(), dtype=torch.float32)
    base = tokens * 1000 + torch.arange(len(tokens))
    layers = torch.arange(spec.num_layers, dtype=torch.float32)[:, None] / 64
    return (base + layers)[:, :, None, None].expand(-1, -1, spec.num_kv_heads, spec.head_dim)


def slots(pool: KVPool, manager: KVCacheManager, request: CacheRequest, start: int) -> torch.Tensor:
    """Where tokens ``start`` and following live: the table's block, and the place in it."""
    table = manager.block_table(request.request_id)
    size = pool.block_size
    return torch.tensor([table[i // size] * size + i % size for i in range(start, request.num_tokens)])


def write(pool: KVPool, manager: KVCacheManager, request: CacheRequest, start: int) -> None:
    """Put the K and V of tokens ``start`` and following where the block table says."""
    for layer, k in enumerate(content(request, read_spec(resolve(MODEL)))):
        pool.write(layer, slots(pool, manager, request, start), k[start:], k[start:])


def read(pool: KVPool, manager: KVCacheManager, request: CacheRequest) -> torch.Tensor:
    """K of the whole request [layers, tokens, heads, dim], through its block table."""
    where = slots(pool, manager, request, 0)
    return torch.stack([pool.slots(layer)[0][where] for layer in range(pool.keys.shape[0])])


def told_copy(copy: BlockCopy) -> str:
    """In words."""
    return f"{copy.num_tokens} slots of block {copy.src} are copied into block {copy.dst}"


if __name__ == "__main__":
    main()

"""Random sequences of calls of the store of files and of the queue, against lists."""

import asyncio
import random
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import pytest
from relattn_mt.serve import files
from relattn_mt.serve.limits import Limits
from relattn_mt.serve.queue import CLIENT, RECENT, BatchQueue, QueueFull


@pytest.mark.parametrize("part", range(4))
def test_store_keeps_the_newest_files_of_each_client(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with more than half of the store loses its own oldest files to one that is kept, for half an hour."""
    now = 0.0
    monkeypatch.setattr(files.time, "monotonic", lambda: now)
    for seed in range(part, 200, 4):
        draw = random.Random(seed)
        size = draw.choice([10, 11, 20])
        store = files.FileStore(size)
        kept: list[tuple[str, bytes, str, float]] = []  # key, content, client and end of the time
        gone: list[str] = []
        for number in range(30):
            now += draw.choice([0.0, 1.0, 600.0, 1800.0])
            expired = [entry for entry in kept if entry[3] < now]
            kept = [entry for entry in kept if entry[3] >= now]
            gone += [key for key, *_ in expired]
            client, content = draw.choice("abc"), bytes([number]) * draw.randint(0, 7)
            rest = list(kept)
            own = [entry for entry in kept if entry[2] == client]
            while own and len(content) + sum(len(entry[1]) for entry in own) > size // 2:
                rest.remove(own.pop(0))
            if len(content) + sum(len(entry[1]) for entry in rest) > size:
                with pytest.raises(QueueFull):
                    store.add(content, "a.txt", ".txt", client)
            else:
                key = store.add(content, f"{number}.txt", ".txt", client)
                assert key.endswith(".txt")
                gone += [entry[0] for entry in kept if entry not in rest]
                kept = [*rest, (key, content, client, now + 1800.0)]
            for key, held, _, _ in kept:
                file = store.get(key)
                assert file is not None
                assert file.content == held
            assert [key for key in gone if store.get(key) is not None] == []


@pytest.mark.parametrize("seed", range(4))
def test_queue_gives_each_request_its_results(seed: int) -> None:
    """With requests of several clients, of which some are cancelled, refused, or fail in a batch with others."""
    draw = random.Random(seed)
    limits = Limits(batch=16, waiting=24, sentences=1, pause=1.0)
    sizes: list[int] = []

    def work(batch: list[int]) -> list[int]:
        sizes.append(len(batch))
        if 13 in batch:
            raise ValueError("13")
        return [-item for item in batch]

    async def one(queue: BatchQueue, client: str, items: list[int], seconds: float) -> str:
        CLIENT.set(client)
        try:
            results = await asyncio.wait_for(queue.submit(items), seconds)
        except QueueFull:
            return "refused"
        except TimeoutError:
            return "cancelled"
        except ValueError:
            return "failed" if 13 in items else "wrong"
        return "right" if results == [-item for item in items] and 13 not in items else "wrong"

    async def run() -> list[str]:
        with ThreadPoolExecutor(1) as threads:
            queue = BatchQueue(work, threads, limits, lambda size: None, deque(maxlen=RECENT), size=abs)
            requests = []
            for _ in range(60):
                items = [
                    draw.choice([1, 2, 3, 13, 200]) if draw.random() < 0.5 else 1 for _ in range(draw.randint(0, 9))
                ]
                seconds = draw.choice([0.0, 20.0, 20.0, 20.0])
                requests.append(asyncio.create_task(one(queue, draw.choice("abc"), items, seconds)))
                assert queue.waiting <= limits.waiting
                if draw.random() < 0.4:
                    await asyncio.sleep(0.004)
            found = await asyncio.wait_for(asyncio.gather(*requests), 30)
            assert queue.waiting == 0
            assert await one(queue, "d", [5, 6], 20.0) == "right"  # after all that, it still works
            return found

    found = asyncio.run(run())
    assert "wrong" not in found
    assert {"right", "failed"} <= {*found}
    assert max(sizes) <= limits.batch

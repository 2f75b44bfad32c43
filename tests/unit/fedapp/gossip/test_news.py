"""Everybody who waits hears of a change, and nobody misses one that came before the wait."""

import asyncio

import pytest

from fedapp.gossip.news import News


def test_all_who_wait_are_woken_and_one_who_gives_up_does_not_disturb_them():
    async def go():
        news = News()
        waits = [asyncio.create_task(news.wait(0)) for _ in range(3)]
        await asyncio.sleep(0)
        waits[0].cancel()
        await asyncio.sleep(0)
        news.tell()
        assert await asyncio.gather(*waits[1:]) == [True, True]
        with pytest.raises(asyncio.CancelledError):
            await waits[0]

    asyncio.run(go())


def test_a_change_between_the_look_and_the_wait_is_not_missed():
    async def go():
        news = News()
        seen = news.count
        news.tell()
        assert await news.wait(seen)
        assert not await news.wait(news.count, 0.01)

    asyncio.run(go())


def test_waiting_in_vain_leaves_nothing_behind():
    async def go():
        news = News()
        for _ in range(10):
            assert not await news.wait(0, 0.0)
        assert not news._waiting

    asyncio.run(go())

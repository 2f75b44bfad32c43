"""Everybody who waits hears of a change, and one who gives up does not disturb the others."""

import asyncio

from fedapp.gossip.news import News


def test_all_who_wait_are_woken_once():
    async def go():
        news = News()
        waits = [asyncio.ensure_future(news.next()) for _ in range(3)]
        waits[0].cancel()
        await asyncio.sleep(0)
        news.tell()
        await asyncio.gather(*waits[1:])
        late = news.next()
        await asyncio.sleep(0)
        assert not late.done()
        news.tell()
        await late

    asyncio.run(go())


def test_a_change_that_nobody_waits_for_is_none():
    async def go():
        news = News()
        news.tell()
        assert not news.next().done()

    asyncio.run(go())

"""A TCP proxy on the loopback that does what networks do: slow, cut, half-open, answers lost.

One asyncio loop in a thread of its own serves all proxies of the process. Attributes may be set from any thread at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading

__all__ = ["Proxy", "ProxyLoop"]

_CHUNK = 65536
_LOOK_S = 0.02


class ProxyLoop:
    """The thread with the loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._proxies: list[Proxy] = []
        self._thread = threading.Thread(target=self.loop.run_forever, name="proxies", daemon=True)
        self._thread.start()

    def proxy(self, port: int) -> Proxy:
        """A proxy before a port of the loopback, listening."""
        made = Proxy(port)
        self._proxies.append(made)
        asyncio.run_coroutine_threadsafe(made.listen(), self.loop).result(5)
        return made

    def close(self) -> None:
        """Cut everything."""

        async def end() -> None:
            for proxy in self._proxies:
                proxy.end()
            tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self.loop).result(5)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        self.loop.close()


class Proxy:
    """One listening port.

    Attributes:
        target: Port that new connections go to.
        port: Where it listens.
        refuse: Close new connections at once.
        hole: Connections are accepted and stay, and nothing passes (a half-open connection; a firewall that drops).
        delay_s: Every answer waits so long.
        bytes_per_s: Answers pass no faster; None without a limit.
        lose_answers: So many answers are swallowed, each with its connection: the request arrived, nobody hears of it.
        passed: Bytes of answers that passed.
        lost: Answers that were swallowed.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.refuse = self.hole = False
        self.delay_s = 0.0
        self.bytes_per_s: float | None = None
        self.lose_answers = self.lost = self.passed = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        """Bind."""
        self._loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def end(self) -> None:
        """Listen no more; in the loop."""
        if self._server is not None:
            self._server.close()

    def cut(self) -> int:
        """Reset every open connection; returns how many sockets there were."""
        n = len(self._open)

        def all_of_them() -> None:
            for writer in list(self._open):
                writer.transport.abort()

        assert self._loop is not None
        self._loop.call_soon_threadsafe(all_of_them)
        return n

    def heal(self) -> None:
        """Nothing is in the way any more."""
        self.refuse = self.hole = False
        self.delay_s, self.bytes_per_s, self.lose_answers = 0.0, None, 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, back}
        try:
            pumps = [asyncio.create_task(self._pump(reader, back, False)), asyncio.create_task(self._pump(there, writer, True))]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            self._open -= {writer, back}
            writer.transport.abort()
            back.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                while self.hole:  # noqa: ASYNC110 - the attribute is set from other threads
                    await asyncio.sleep(_LOOK_S)
                if answers and self.lose_answers > 0:
                    self.lose_answers -= 1
                    self.lost += 1
                    return
                if answers and (self.delay_s or self.bytes_per_s):
                    await asyncio.sleep(self.delay_s + (len(data) / self.bytes_per_s if self.bytes_per_s else 0.0))
                if answers:
                    self.passed += len(data)
                writer.write(data)
                await writer.drain()

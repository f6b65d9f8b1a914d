"""Messages between the learner and a process that generates. It imports nothing that is slow to load."""

import os
import queue
import socket
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

BEAT_SECONDS = 1.0  # something is sent at least this often


class Channel:
    """One end of a connection. Sending never blocks; a running process sends something every second."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self.send_all, daemon=True).start()

    def send(self, message: Any) -> None:
        self.outbox.put(message)

    def send_all(self) -> None:
        with suppress(OSError):  # the other process has ended, as `receive` finds
            while True:
                try:
                    message = self.outbox.get(timeout=BEAT_SECONDS)
                except queue.Empty:
                    message = None
                self.connection.send(message)

    def receive(self, seconds: float | None) -> Any:
        """The next message, or None if it only says that the other process is running.

        Raises EOFError or OSError if that process has ended, and TimeoutError if nothing comes within `seconds`.
        """
        # A second look, because this process may have been stopped in between.
        if not self.connection.poll(seconds) and not self.connection.poll(0):
            raise TimeoutError
        return self.connection.recv()


def main(descriptor: int) -> None:
    """The process that generates: it sends a heartbeat from the start and ends when the learner ends."""
    channel = Channel(Connection(descriptor))
    with suppress(EOFError, OSError):
        settings = channel.receive(None)
        from recipes.remote import work

        work(channel, **settings)
    os._exit(1)  # the learner has ended; whatever still runs here has no purpose


def pair() -> tuple[Connection, Connection]:
    one, other = socket.socketpair()
    return Connection(one.detach()), Connection(other.detach())

"""JSON lines between the driver and a worker."""

from __future__ import annotations

import json
import os
from typing import Any, BinaryIO

__all__ = ["Channel", "Message", "claim_standard_streams"]

Message = dict[str, Any]


class Channel:
    """One message a line, each a JSON object."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, message: Message) -> None:
        self.writer.write(json.dumps(message).encode() + b"\n")
        self.writer.flush()

    def receive(self) -> Message | None:
        """The next message; None when the other end is gone."""
        line = self.reader.readline()
        if not line.endswith(b"\n"):
            return None
        message: Message = json.loads(line)
        return message


def claim_standard_streams() -> Channel:
    """Takes stdin and stdout of this process for messages.

    Whatever prints to stdout from now on, be it a library in C, lands on stderr; whatever reads stdin finds it empty.
    The private copies are not inherited by child processes.
    """
    channel = Channel(os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"))
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return channel

"""Records of what was measured: a file of JSON lines, one ``{"key": ..., "value": ...}`` each.

A key says all that a measurement depends on, the versions of what was measured included, so that a record never holds
for anything else. Processes append; of equal keys the last line counts; lines that are none are passed over.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Records"]


class Records:
    """The records in a file, which need not exist yet. Safe for several threads and processes."""

    def __init__(self, path: Path | None) -> None:
        """`path` None: they last as long as the process."""
        self.path = path
        self._lock = threading.Lock()
        self._found: dict[str, Any] = {}
        self._read_to = 0

    def get(self, key: Mapping[str, Any]) -> Any:
        """What is recorded for a key; None where nothing is."""
        with self._lock:
            self._read()
            return self._found.get(_text(key))

    def put(self, key: Mapping[str, Any], value: Any) -> None:
        """Records a value, in one write. Where the file cannot be written to, this process knows it all the same."""
        line = json.dumps({"key": key, "value": value}, sort_keys=True, separators=(",", ":"))
        with self._lock:
            self._found[_text(key)] = json.loads(line)["value"]
            if self.path is None:
                return
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
                try:
                    os.write(file, line.encode() + b"\n")
                finally:
                    os.close(file)
            except OSError:
                self.path = None

    def _read(self) -> None:
        """What was appended since the last time."""
        if self.path is None:
            return
        try:
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_size < self._read_to:
                    self._read_to = 0  # it was replaced by a shorter one
                file.seek(self._read_to)
                data = file.read()
        except OSError:
            return
        whole = data.rfind(b"\n") + 1  # what follows is a line that is being written
        self._read_to += whole
        for line in data[:whole].splitlines():
            try:
                entry = json.loads(line)
                self._found[_text(entry["key"])] = entry["value"]
            except (ValueError, KeyError, TypeError):
                continue


def _text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True, separators=(",", ":"))

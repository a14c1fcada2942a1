"""Records in a file of JSON lines: found again, by other processes too, whatever else the file holds."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from nnvm.tuning.records import Records

KEY = {"gpu": "A", "ops": ["dense", "relu"], "shape": [3, 4]}


def test_what_is_put_is_found_in_another_object(tmp_path):
    path = tmp_path / "new" / "records.jsonl"
    ours = Records(path)
    assert ours.get(KEY) is None
    ours.put(KEY, {"ours": 1.5})
    assert Records(path).get({"shape": [3, 4], "gpu": "A", "ops": ["dense", "relu"]}) == {"ours": 1.5}
    assert Records(path).get({**KEY, "gpu": "B"}) is None


def test_the_last_record_counts(tmp_path):
    path = tmp_path / "records.jsonl"
    for n in range(3):
        Records(path).put(KEY, n)
    assert Records(path).get(KEY) == 2
    assert len(path.read_text().splitlines()) == 3


def test_what_another_process_appends_is_seen(tmp_path):
    path = tmp_path / "records.jsonl"
    mine = Records(path)
    mine.put(KEY, 1)
    script = (
        f"from nnvm.tuning.records import Records; Records(__import__('pathlib').Path({str(path)!r})).put({KEY}, 7)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert mine.get(KEY) == 7


def test_damage_is_passed_over(tmp_path):
    path = tmp_path / "records.jsonl"
    Records(path).put(KEY, 4)
    with open(path, "ab") as file:
        file.write(b'garbage\n{"key": 3}\n[1, 2]\n\xff\xfe\n{"key": {"half": 1}, "val')
    found = Records(path)
    assert found.get(KEY) == 4 and found.get({"half": 1}) is None


def test_a_file_that_is_replaced_is_read_anew(tmp_path):
    path = tmp_path / "records.jsonl"
    ours = Records(path)
    ours.put(KEY, "long enough to be shorter later")
    assert ours.get(KEY)
    path.write_text('{"key":{"a":1},"value":2}\n')
    assert ours.get({"a": 1}) == 2


def test_without_a_file_they_last_as_long_as_the_object(tmp_path):
    ours = Records(None)
    ours.put(KEY, 9)
    assert ours.get(KEY) == 9 and Records(None).get(KEY) is None
    blocked = tmp_path / "file"
    blocked.write_text("")
    lost = Records(blocked / "records.jsonl")
    lost.put(KEY, 5)
    assert lost.get(KEY) == 5


def test_threads_lose_no_line(tmp_path):
    path = tmp_path / "records.jsonl"
    threads = [threading.Thread(target=lambda n=n: [Records(path).put({"n": n, "i": i}, i) for i in range(20)])
               for n in range(4)]  # fmt: skip
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    found = Records(path)
    assert all(found.get({"n": n, "i": i}) == i for n in range(4) for i in range(20))
    assert os.path.getsize(path) > 0

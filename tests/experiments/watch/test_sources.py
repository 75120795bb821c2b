"""Where measurements come from."""

import io
import os
import shutil
import socket

import pytest

from experiments.watch import sources
from experiments.watch.sources import Folder, Listener, Stream
from jaxsim.files.errors import InputError

LINE = '{{"domain": "{}", "gpus_available": 1}}\n'


def names(batch):
    return [body["domain"] for body in batch]


def until(source, count):
    found = []
    for _ in range(100):
        found += source.read(0.05)
        if len(found) >= count:
            break
    return names(found)


def test_files_are_read_once_each_in_the_order_of_their_names(tmp_path):
    for name in ("b", "a", ".hidden", "c.tmp", "c.part"):
        (tmp_path / name).write_text(LINE.format(name))
    source = Folder(str(tmp_path))
    assert until(source, 2) == ["a", "b"] and source.read(0.01) == []
    assert source.position == "b"
    (tmp_path / "c").write_text(LINE.format("c").rstrip("\n"))  # its last line has no end
    assert until(source, 1) == ["c"]
    later = Folder(str(tmp_path), position="b")
    assert until(later, 1) == ["c"] and later.read(0.01) == []


def test_a_file_that_is_half_read_is_gone_on_with(tmp_path, monkeypatch):
    """Where a line and the columns of its header were cut in two, in every byte."""
    rows = "".join(f"2,x,{n}\n" for n in range(4))
    text = "bandwidth_gbps,src,dst\n" + rows
    (tmp_path / "a").write_text(text)
    (tmp_path / "b").write_text(LINE.format("b"))
    whole = [f"{n}" for n in range(4)] + ["b"]
    for chunk in range(1, len(text) + 1):
        monkeypatch.setattr(sources, "CHUNK", chunk)
        first = Folder(str(tmp_path))
        taken = first.read(0.01)
        assert first.position == f"a/{min(chunk, len(text))}"
        first.close()
        later = Folder(str(tmp_path), position=first.position)
        found = [x["dst"] for x in taken]
        while later.position != "b":
            found += [x.get("dst", x.get("domain")) for x in later.read(0.01)]
        assert found == whole, chunk


def test_the_position_is_the_name_at_the_end_of_a_file(tmp_path):
    (tmp_path / "a").write_text(LINE.format("a") * 3)
    source = Folder(str(tmp_path))
    assert len(source.read(0.01)) == 3 and source.position.startswith("a/")
    assert source.read(0.01) == [] and source.position == "a"
    (tmp_path / "b").write_text(LINE.format("b"))
    gone = Folder(str(tmp_path), position="aa/7")  # a file that was taken away
    assert until(gone, 1) == ["b"]


def test_what_cannot_be_read_is_told_once_and_left_out(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "measurements"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / name).write_text(LINE.format(name))
    really = os.open

    def refused(path, *args, **named):
        if str(path).endswith("/a"):
            raise PermissionError(13, "Permission denied", str(path))
        return really(path, *args, **named)

    monkeypatch.setattr(os, "open", refused)
    source = Folder(str(folder))
    assert until(source, 1) == ["b"]
    assert capsys.readouterr().err.count("Permission denied") == 1
    assert source.read(0.01) == []
    shutil.rmtree(folder)
    assert source.read(0.01) == source.read(0.01) == []
    assert capsys.readouterr().err.count("No such file") == 1


def test_clients_of_a_socket_do_not_disturb_each_other():
    source = Listener(0)
    with (
        socket.create_connection(("127.0.0.1", source.port)) as one,
        socket.create_connection(("127.0.0.1", source.port)) as two,
    ):
        one.sendall(b'{"domain": "o')
        two.sendall(LINE.format("two").encode())
        assert until(source, 1) == ["two"]
        one.sendall(b'ne"}\n')
        assert until(source, 1) == ["one"]
    source.close()


def test_a_port_that_is_taken_and_a_folder_that_is_not_there_are_refused(tmp_path):
    source = Listener(0)
    with pytest.raises(InputError, match=f"port {source.port}"):
        Listener(source.port)
    source.close()
    with pytest.raises(InputError, match="nowhere"):
        Folder(str(tmp_path / "nowhere"))


def test_a_pipe_is_read_as_lines_come_and_ends():
    read, write = os.pipe()
    with os.fdopen(read) as stream:
        source = Stream(stream)
        assert source.read(0.01) == []
        os.write(write, (LINE.format("a") + LINE.format("b")[:9]).encode())
        assert names(source.read(1.0)) == ["a"]
        os.write(write, LINE.format("b")[9:-1].encode())
        os.close(write)
        assert source.read(1.0) == [] and names(source.read(1.0)) == ["b"]
        assert source.read(1.0) is None


def test_text_without_a_file_is_read_too():
    source = Stream(io.StringIO(LINE.format("a")))
    assert names(source.read(1.0)) == ["a"] and source.read(1.0) is None

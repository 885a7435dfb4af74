"""The tiny model is deterministic and laid out as transformers and safetensors read it."""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any

from sandbox import tiny_model

if TYPE_CHECKING:
    from pathlib import Path


def split(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Read safetensors: eight bytes of length, a JSON header, the values."""
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def test_the_same_bytes_every_time(tmp_path: Path) -> None:
    names = tiny_model.write(tmp_path / "a")
    tiny_model.write(tmp_path / "b")
    assert sorted(names) == sorted(path.name for path in (tmp_path / "a").iterdir())
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)


def test_a_second_write_heals_and_touches_nothing_else(tmp_path: Path) -> None:
    tiny_model.write(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"half")
    (tmp_path / ".config.json.partial").touch()
    assert tiny_model.write(tmp_path) == ["model.safetensors"]
    assert tiny_model.write(tmp_path) == []


def test_the_header_covers_the_values_without_gaps() -> None:
    data = tiny_model.safetensors()
    header, body = split(data)
    assert (len(data) - len(body)) % 8 == 0
    assert header.pop("__metadata__") == {"format": "pt"}
    end = 0
    for entry in header.values():
        assert entry["dtype"] == "F32"
        assert entry["data_offsets"] == [end, end + 4 * math.prod(entry["shape"])]
        end = entry["data_offsets"][1]
    assert end == len(body)


def test_tensors_are_those_of_gpt2() -> None:
    shapes = {name: shape for name, shape, _ in tiny_model.tensors()}
    hidden = tiny_model.HIDDEN
    assert shapes["transformer.wte.weight"] == (tiny_model.VOCABULARY, hidden)
    assert shapes["transformer.wpe.weight"] == (tiny_model.POSITIONS, hidden)
    assert shapes["transformer.h.1.attn.c_attn.weight"] == (hidden, 3 * hidden)
    assert shapes["transformer.h.1.mlp.c_proj.weight"] == (4 * hidden, hidden)
    assert shapes["transformer.ln_f.bias"] == (hidden,)
    assert len(shapes) == 2 + 12 * tiny_model.LAYERS + 2
    assert all(len(values) == math.prod(shape) for _, shape, values in tiny_model.tensors())


def test_only_printable_tokens_have_an_embedding() -> None:
    _, (_, width), values = next(tiny_model.tensors())
    rows = [values[start : start + width] for start in range(0, len(values), width)]
    assert [token for token, row in enumerate(rows) if any(row)] == list(range(0x20, 0x7F))


def test_another_seed_is_another_model() -> None:
    assert next(tiny_model.tensors(seed=1))[2] != next(tiny_model.tensors(seed=2))[2]


def test_a_token_is_a_byte() -> None:
    alphabet = tiny_model.byte_alphabet()
    assert len(set(alphabet)) == 256
    assert (alphabet[ord("A")], alphabet[ord(" ")], alphabet[ord("\n")]) == ("A", "Ġ", "Ċ")
    vocabulary = tiny_model.tokenizer()["model"]["vocab"]
    assert [vocabulary[char] for char in alphabet] == list(range(256))
    assert vocabulary[tiny_model.END_OF_TEXT] == tiny_model.END_OF_TEXT_ID == tiny_model.VOCABULARY - 1

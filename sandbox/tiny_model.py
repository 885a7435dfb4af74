"""A GPT-2 of 185 thousand random weights that SGLang loads and serves like any other model.

``python3 -m sandbox.tiny_model DIRECTORY`` writes the six files. A token is a byte, so every text can be
encoded and every JSON schema can be satisfied. The bytes are the same on every machine and every run.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from itertools import chain
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HIDDEN = 64
LAYERS = 2
HEADS = 4
POSITIONS = 1024
END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 256
VOCABULARY = 257
# Rows of the embedding that are not printable stay zero: a greedy completion is then readable text, and it
# ends at its length limit, never at a random end-of-text.
PRINTABLE = range(0x20, 0x7F)
SEED = 20

CONFIG = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.0,
    "bos_token_id": END_OF_TEXT_ID,
    "dtype": "float32",
    "embd_pdrop": 0.0,
    "eos_token_id": END_OF_TEXT_ID,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_embd": HIDDEN,
    "n_head": HEADS,
    "n_inner": None,
    "n_layer": LAYERS,
    "n_positions": POSITIONS,
    "resid_pdrop": 0.0,
    "scale_attn_weights": True,
    "tie_word_embeddings": True,
    "use_cache": True,
    "vocab_size": VOCABULARY,
}
GENERATION_CONFIG = {"bos_token_id": END_OF_TEXT_ID, "eos_token_id": END_OF_TEXT_ID}
TOKENIZER_CONFIG = {
    "add_prefix_space": False,
    "bos_token": END_OF_TEXT,
    "chat_template": "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}",
    "clean_up_tokenization_spaces": False,
    "eos_token": END_OF_TEXT,
    "model_max_length": POSITIONS,
    "tokenizer_class": "PreTrainedTokenizerFast",
    "unk_token": END_OF_TEXT,
}
SPECIAL_TOKENS_MAP = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "unk_token": END_OF_TEXT}


def byte_alphabet() -> list[str]:
    """Return the character that stands for each byte in a byte-level BPE (GPT-2's ``bytes_to_unicode``)."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in visible else chr(next(spare)) for byte in range(0x100)]


def tokenizer() -> dict[str, Any]:
    """Return ``tokenizer.json``: 256 bytes, no merges, and the end of text."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": END_OF_TEXT_ID,
                "content": END_OF_TEXT,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {
                **{char: byte for byte, char in enumerate(byte_alphabet())},
                END_OF_TEXT: END_OF_TEXT_ID,
            },
            "merges": [],
        },
    }


Tensor = tuple[str, tuple[int, ...], list[float]]


def tensors(*, seed: int = SEED) -> Iterator[Tensor]:
    """Yield name, shape and values of every tensor, named and laid out as transformers saves GPT-2.

    Projections are stored input by output (``Conv1D``); the output head is tied to ``wte`` and not stored.
    Matrices are uniform with variance 1/input, so that the blocks and not the embedding decide the next
    token. Only sums and products of ``Random.random`` are used: its sequence is the same on every Python.
    """
    random = Random(seed).random  # noqa: S311 - weights, not secrets

    def uniform(count: int, deviation: float) -> list[float]:
        bound = deviation * math.sqrt(3)
        return [(2 * random() - 1) * bound for _ in range(count)]

    def matrix(name: str, rows: int, columns: int) -> Iterator[Tensor]:
        yield f"{name}.weight", (rows, columns), uniform(rows * columns, 1 / math.sqrt(rows))
        yield f"{name}.bias", (columns,), [0.0] * columns

    def norm(name: str) -> Iterator[Tensor]:
        yield f"{name}.weight", (HIDDEN,), [1.0] * HIDDEN
        yield f"{name}.bias", (HIDDEN,), [0.0] * HIDDEN

    rows = (uniform(HIDDEN, 0.02) if token in PRINTABLE else [0.0] * HIDDEN for token in range(VOCABULARY))
    yield "transformer.wte.weight", (VOCABULARY, HIDDEN), list(chain.from_iterable(rows))
    yield "transformer.wpe.weight", (POSITIONS, HIDDEN), uniform(POSITIONS * HIDDEN, 0.02)
    for layer in range(LAYERS):
        block = f"transformer.h.{layer}"
        yield from norm(f"{block}.ln_1")
        yield from matrix(f"{block}.attn.c_attn", HIDDEN, 3 * HIDDEN)
        yield from matrix(f"{block}.attn.c_proj", HIDDEN, HIDDEN)
        yield from norm(f"{block}.ln_2")
        yield from matrix(f"{block}.mlp.c_fc", HIDDEN, 4 * HIDDEN)
        yield from matrix(f"{block}.mlp.c_proj", 4 * HIDDEN, HIDDEN)
    yield from norm("transformer.ln_f")


def safetensors() -> bytes:
    """Return ``model.safetensors``: header length, JSON header padded to 8 bytes, float32 values."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = bytearray()
    for name, shape, values in tensors():
        start = len(body)
        body += struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, len(body)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(body)


def as_json(value: dict[str, Any]) -> bytes:
    """Return the document as transformers writes it: two spaces, UTF-8, a last newline."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


FILES: dict[str, Callable[[], bytes]] = {
    "config.json": lambda: as_json(CONFIG),
    "generation_config.json": lambda: as_json(GENERATION_CONFIG),
    "tokenizer.json": lambda: as_json(tokenizer()),
    "tokenizer_config.json": lambda: as_json(TOKENIZER_CONFIG),
    "special_tokens_map.json": lambda: as_json(SPECIAL_TOKENS_MAP),
    "model.safetensors": safetensors,
}


def write(directory: Path) -> list[str]:
    """Write what is missing or different, each file in one step, and return its names."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, content in FILES.items():
        path, wanted = directory / name, content()
        if path.is_file() and path.read_bytes() == wanted:
            continue
        partial = directory / f".{name}.partial"
        partial.write_bytes(wanted)
        partial.replace(path)
        written.append(name)
    return written


if __name__ == "__main__":
    if len(sys.argv) != 2:  # noqa: PLR2004 - the program and its one argument
        sys.exit("usage: python3 -m sandbox.tiny_model DIRECTORY")
    write(Path(sys.argv[1]))

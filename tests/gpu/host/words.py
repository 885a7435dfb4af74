"""Give a tiny tokenizer a word for every number that a model of random weights may answer with.

python3 words.py MODEL_DIRECTORY
"""

import json
import sys
from pathlib import Path

model = Path(sys.argv[1])
config = json.loads((model / "config.json").read_text(encoding="utf-8"))
tokenizer = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
size = config.get("text_config", config)["vocab_size"]
vocabulary = tokenizer["model"]["vocab"]
taken = {*vocabulary.values(), *(token["id"] for token in tokenizer["added_tokens"])}
vocabulary.update({f"w{number}": number for number in range(size) if number not in taken})
(model / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")

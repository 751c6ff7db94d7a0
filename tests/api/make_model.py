"""Make a model with the tokenizer of SmolLM2 and small random weights, in the folder given."""

import shutil
import sys
from pathlib import Path

from support.tiny_models import make_tiny_model
from triptych.models import resolve

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def main(directory: Path) -> None:
    tokenizer = resolve("smollm2").directory
    make_tiny_model("llama", directory, vocab_size=49152, max_position_embeddings=256)
    for name in FILES:
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

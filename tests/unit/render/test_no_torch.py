"""A render process never loads torch, even where it is installed (it is, for these tests)."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

_PROGRAM = """
import sys
from pathlib import Path
from triptych_render.renderer import Renderer
renderer = Renderer.from_directory(Path(sys.argv[1]), model="toy")
renderer.render_chat(b'{"messages": [{"role": "user", "content": "hi"}], "tools": []}')
renderer.render_completion(b'{"prompt": "hi"}')
renderer.tokenize(b'{"prompt": "hi"}')
renderer.detokenize(b'{"tokens": [9]}')
renderer.tokenizer_info()
print(sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "fastapi", "grpc"}))
"""


def test_rendering_loads_neither_torch_nor_a_server(make_model: Callable[..., Path]) -> None:
    assert importlib.util.find_spec("torch") is not None
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(make_model())],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"

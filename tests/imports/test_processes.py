"""Which heavy packages a service's process loads, transitively, in a clean interpreter."""

import subprocess
import sys
from pathlib import Path

import pytest

#: Module that a service's process starts with -> packages it must never load.
FORBIDDEN = {
    "triptych_render.__main__": {"torch", "triptych_generate", "triptych_derender"},
    "triptych_derender.__main__": {"torch", "transformers", "tokenizers", "triptych_render"},
    "triptych_gateway.__main__": {"torch", "transformers", "tokenizers", "jinja2"},
    "triptych_generate.__main__": {"tokenizers", "triptych_render", "triptych_derender"},
    "triptych_generate.compile_process": {"torch", "transformers", "tokenizers", "fastapi", "grpc"},
    "triptych_cli.serve": {"torch", "triptych_generate"},
    "triptych_cli.main": {"fastapi", "grpc", "torch", "transformers", "pydantic"},
    "triptych.client.http": {"torch", "transformers", "fastapi", "pydantic", "grpc"},
    "triptych.client.rpc": {"torch", "transformers", "fastapi", "pydantic", "httpx"},
    "triptych.client": {"httpx", "grpc", "numpy"},
    "triptych.wire": {"pydantic", "fastapi", "grpc", "google", "numpy", "orjson"},
    "triptych.errors": {"pydantic", "fastapi", "grpc", "google", "numpy", "orjson"},
}


@pytest.mark.parametrize("module", FORBIDDEN)
def test_process_does_not_load(module: str) -> None:
    script = f"import sys, {module}; print('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], check=True, capture_output=True, text=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert module.partition(".")[0] in loaded
    assert loaded & FORBIDDEN[module] == set()


def test_render_does_not_say_that_torch_is_missing() -> None:
    script = (
        "import importlib.util, sys; from triptych.import_settings import quieten_transformers;"
        "find = importlib.util.find_spec;"
        "importlib.util.find_spec = lambda name, *at: None if name == 'torch' else find(name, *at);"
        "quieten_transformers() if sys.argv[1] == 'quiet' else None;"
        "import triptych_render.template"
    )
    loud, quiet = (
        subprocess.run([sys.executable, "-c", script, how], capture_output=True, text=True)
        for how in ("loud", "quiet")
    )
    assert "PyTorch was not found" in loud.stderr  # else this test shows nothing
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


def test_derender_with_a_template_loads_no_torch() -> None:
    """It loads transformers then, but neither torch nor a tokenizer of its own."""
    script = (
        "import sys; from pathlib import Path;"
        "from triptych.response_template import find_family;"
        "from triptych_derender.derenderer import Derenderer;"
        "from triptych_derender.token_table import parse_token_table;"
        'table = parse_token_table(b\'{"model": {"vocab": {}}}\');'
        "Derenderer(table, model='m', family=find_family('qwen3', Path()));"
        "print('\\n'.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], check=True, capture_output=True, text=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "transformers" in loaded
    assert loaded & {"torch", "triptych_render", "triptych_generate"} == set()


GENERATE_WITHOUT_TOKENIZER = """
import asyncio, sys
for name in ("tokenizers", "jinja2", "sentencepiece"):
    sys.modules[name] = None  # importing it now raises
from pathlib import Path
from triptych.structured import make_vocabulary
from triptych.wire import GenerateRequest, SamplingParams, StructuredOutputs
from triptych_generate.options import EngineOptions
from triptych_generate.service import GenerateService

async def main():
    options = EngineOptions(model_dir=Path(sys.argv[1]), served_model_name="tiny", num_threads=1)
    service = GenerateService.load(options)
    service.start()
    await service.put_vocabulary(make_vocabulary("f", [bytes([i]) for i in range(64)]))
    held = StructuredOutputs(regex="[0-9]+")
    params = SamplingParams(max_tokens=3, temperature=0, structured_outputs=held)
    request = GenerateRequest(
        token_ids=[1, 2, 3], sampling_params=params, tokenizer_fingerprint="f"
    )
    print(sum([len(c.token_ids) async for d in service.generate(request) for c in d.choices]))
    await service.stop()

asyncio.run(main())
"""


def test_generate_needs_no_tokenizer_package_and_no_tokenizer_file(tmp_path: Path) -> None:
    """transformers itself may import such packages; here they cannot be imported at all."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)  # one whose first three ids go on with the pattern
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes, **heads)).save_pretrained(tmp_path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", GENERATE_WITHOUT_TOKENIZER, str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["3"]

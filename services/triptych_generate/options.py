"""What an engine is started with: one plain object, filled by the process's settings."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from triptych.errors import SetupError

DTypeName = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarLimits:
    """Bounds of a worker's grammars.

    Attributes:
        max_vocabularies: vocabularies kept; the one that was used longest ago goes.
        compile_timeout_s: what one grammar may take to compile.
        compile_memory_bytes: what compiling one may allocate.
        wait_timeout_s: what a request may wait, the compiles before its own included.
        max_waiting: grammars that wait for their compile or are in it.
        max_cached_bytes: compiled grammars kept; those used longest ago go.
        max_cached: the same, by number; refusals are kept too.
    """

    max_vocabularies: int = 2
    compile_timeout_s: float = 5.0
    compile_memory_bytes: int = 1 << 30
    wait_timeout_s: float = 30.0
    max_waiting: int = 64
    max_cached_bytes: int = 256 << 20
    max_cached: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Options of one engine; ``None`` means that the engine chooses.

    Attributes:
        model_dir: a Hugging Face directory: config.json and safetensors; no tokenizer is read.
        served_model_name: the name that requests give.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        dtype: of weights and KV blocks. Softmax, logits and logprobs are always float32.
        max_model_len: tokens of prompt and output together; None: what model and KV blocks allow.
        block_size: tokens in a KV block. Results depend on it in their last bits.
        kv_cache_bytes: size of all KV blocks together; None: a part of the free memory.
        prefix_cache: keep the KV blocks of finished sequences for requests that begin alike.
        max_step_tokens: token budget of a step, decodes and prefill chunks together.
        max_num_sequences: sequences that run at once.
        max_waiting: requests that may wait; the next one is refused as overload.
        max_waiting_tokens: tokens of prompts that may wait; the same.
        max_logprobs: most entries a client may ask per position; -1: the whole vocabulary.
        cuda_graphs: on CUDA, record steps that only decode once per size, and replay them.
        num_threads: torch's threads; None: torch's own choice.
        use_kernels: compute with the compiled CPU kernels where they can be compiled.
        grammars: bounds of structured outputs.
    """

    model_dir: Path
    served_model_name: str
    device: str = "cpu"
    dtype: DTypeName = "float32"
    max_model_len: int | None = None
    block_size: int = 64
    kv_cache_bytes: int | None = None
    prefix_cache: bool = True
    max_step_tokens: int = 384
    max_num_sequences: int = 64
    max_waiting: int = 1024
    max_waiting_tokens: int = 1 << 20
    max_logprobs: int = 20
    cuda_graphs: bool = True
    num_threads: int | None = None
    use_kernels: bool = True
    grammars: GrammarLimits = field(default_factory=GrammarLimits)

    def __post_init__(self) -> None:
        for name in (
            "block_size",
            "max_step_tokens",
            "max_num_sequences",
            "max_waiting",
            "max_waiting_tokens",
        ):
            if getattr(self, name) < 1:
                raise SetupError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.max_step_tokens < self.max_num_sequences:
            raise SetupError(
                f"max_step_tokens is {self.max_step_tokens}, less than max_num_sequences "
                f"{self.max_num_sequences}: every running sequence needs a token in each step"
            )

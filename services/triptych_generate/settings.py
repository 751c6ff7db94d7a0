"""Settings of the generate service."""

from typing import Literal

from pydantic import Field

from triptych.settings import ModelSettings, PanelSettings, settings_config


class GenerateSettings(PanelSettings, ModelSettings):
    """Run a generate worker: token ids in, token ids and integer logprobs out. One per device."""

    model_config = settings_config("TRIPTYCH_GENERATE_", "generate")

    http_port: int = Field(8002, ge=0, le=65535, description="port for JSON; 0 = any")
    grpc_port: int = Field(9002, ge=0, le=65535, description="port for gRPC; 0 = any")
    device: str = Field("cpu", description="cpu, cuda or cuda:N")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="of weights and activations; attention and logits are float32"
    )
    max_num_sequences: int = Field(
        64, ge=1, le=1024, description="sequences that one step may hold"
    )
    max_step_tokens: int = Field(
        384, ge=16, description="tokens that one step may hold, decodes and prefill chunks together"
    )
    max_waiting: int = Field(256, ge=1, description="requests that may wait; above it: 429")
    max_waiting_tokens: int = Field(
        2**20, ge=1, description="tokens of the prompts that wait; above it: 429"
    )
    kv_cache_gb: float | None = Field(
        None,
        gt=0,
        description="memory for the KV cache, in GB (10^9 bytes); default: of the free "
        "memory up to a half on the CPU, four fifths on CUDA",
    )
    cuda_graphs: bool = Field(
        True, description="on CUDA: record steps that only decode once per size, and replay them"
    )
    prefix_cache: bool = Field(
        True, description="reuse the KV blocks of prompts and outputs that begin alike"
    )
    compile_timeout_s: float = Field(
        5.0, gt=0, le=600, description="seconds that one structured output may take to compile"
    )
    threads: int | None = Field(
        None, ge=1, description="torch threads on the CPU; default: all cores"
    )

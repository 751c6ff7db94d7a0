"""Settings of the generate service."""

from typing import ClassVar

from pydantic import Field
from pydantic_settings import BaseSettings

from triptych.settings import DeviceSettings, ModelSettings, PanelSettings, settings_config


class EngineSettings(BaseSettings):
    """Mixed into generate's settings: how it computes, and how much at once."""

    flag_group: ClassVar[str] = "engine"

    prefix_cache: bool = Field(True, description="reuse the KV blocks of equal beginnings")
    cuda_graphs: bool = Field(True, description="on CUDA: record steps that only decode")
    max_num_sequences: int = Field(64, ge=1, le=1024, description="sequences in one step")
    max_step_tokens: int = Field(384, ge=16, description="tokens in one step, decodes and prefills")
    max_waiting: int = Field(256, ge=1, description="requests that wait; above it: 429")
    max_waiting_tokens: int = Field(2**20, ge=1, description="of prompts that wait; above it: 429")
    compile_timeout_s: float = Field(
        5.0, gt=0, le=600, description="seconds to compile a structured output in"
    )


class GenerateSettings(ModelSettings, DeviceSettings, EngineSettings, PanelSettings):
    """Run a generate worker: token ids in, token ids and integer logprobs out. One per device.

    On CUDA the KV cache takes four fifths of the memory that is free, on the CPU at most a half.
    """

    model_config = settings_config("TRIPTYCH_GENERATE_", "generate")
    flag_examples: ClassVar[tuple[str, ...]] = (
        "triptych generate --model smollm2",
        "triptych generate --model owner/name --device cuda --dtype bfloat16",
    )

    http_port: int = Field(8002, ge=0, le=65535, description="port for JSON; 0 = any")
    grpc_port: int = Field(9002, ge=0, le=65535, description="port for gRPC; 0 = any")

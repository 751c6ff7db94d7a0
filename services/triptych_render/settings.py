"""Settings of the render service."""

from pydantic import Field

from triptych.settings import ModelSettings, PanelSettings, TemplateSettings, settings_config


class RenderSettings(PanelSettings, ModelSettings, TemplateSettings):
    """Run the render service: OpenAI requests in, token ids and sampling parameters out."""

    model_config = settings_config("TRIPTYCH_RENDER_", "render")

    http_port: int = Field(8001, ge=0, le=65535, description="port for JSON; 0 = any")
    grpc_port: int = Field(9001, ge=0, le=65535, description="port for gRPC; 0 = any")

"""A gateway with derender in its process: ``python -m bench.split_gateway flags…``."""

import sys

from triptych.serving import Service, run_service
from triptych.settings import parse_settings
from triptych_derender.__main__ import load_derenderer
from triptych_derender.settings import DerenderSettings
from triptych_gateway.__main__ import create_gateway_service
from triptych_gateway.flows import Panels
from triptych_gateway.in_process import InProcessDerender
from triptych_gateway.over_grpc import GrpcGenerate, GrpcRender
from triptych_gateway.settings import GatewaySettings


def main(args: list[str]) -> int:
    settings = parse_settings(GatewaySettings, args)

    def start() -> Service:
        render = GrpcRender(settings.render)
        generate = GrpcGenerate(settings.generate, timeout_s=settings.request_timeout_s)
        derender = InProcessDerender(load_derenderer(parse_settings(DerenderSettings, [])))
        return create_gateway_service(
            Panels(render, generate, derender), settings, [render, generate]
        )

    return run_service(start, settings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

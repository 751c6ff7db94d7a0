"""The OpenAPI documents of the four services, made from the types that read and write the bodies.

``python -m openapi`` writes them (``make openapi``); ``--check`` fails where they are not current.
"""

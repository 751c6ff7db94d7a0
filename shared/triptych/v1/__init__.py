"""Generated from proto/triptych/v1."""

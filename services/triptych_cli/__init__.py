"""The triptych command: the one place that composes the services."""

"""What the services share: wire structs, errors, conversion, HTTP and gRPC plumbing, settings."""

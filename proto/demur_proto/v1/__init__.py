"""Generated bindings; the schema is the .proto files beside them."""

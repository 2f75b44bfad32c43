"""The messages between a ClientApp and its site: `site.proto`, and what protoc makes of it."""

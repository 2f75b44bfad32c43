"""The messages of the gossip layer: `gossip.proto`, and what protoc makes of it."""

"""Protobuf: descriptors, the wire form, columns from it and back, and the two formats."""

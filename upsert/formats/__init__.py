"""Wire formats: bytes of records to Arrow rows and back; one format a file, both directions side by side.

``base`` has the protocol and ``format_named``.
"""

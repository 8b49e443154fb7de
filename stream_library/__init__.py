"""Streams inside an application's process: the core of a persist server, without NATS, without a
coordinator, on a folder of the process's own and perhaps a bucket.

    from holdfast.stream_library.library import open_library
"""

"""The blocking API: the asyncio one, run in a thread of its own. Most of it is generated."""

"""The blocking API: runs the asyncio API in a thread of its own. Most of it is generated."""

"""The HTTP gateway under load: appends against the reference server, followers, memory."""

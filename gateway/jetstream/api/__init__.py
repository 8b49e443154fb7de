"""JetStream's API as data: requests, replies, configurations, headers, errors. All pure."""

"""The persist server: owns stores, makes writes durable, answers and broadcasts."""

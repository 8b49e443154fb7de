"""What a published message asks for in its headers: expectations, lifetime, batches, schedules."""

"""Elementary functions as plain arithmetic. Each module's functions take a `Vector` (how to write) and operands."""

"""What people start: the command, the demo, the doctor."""

"""Carrying messages: the port (`base`), the names (`topology`), two implementations, and `connect` to choose one."""

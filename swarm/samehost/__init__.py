"""Processes of one host: datagrams on sockets of the kernel, and shared memory."""

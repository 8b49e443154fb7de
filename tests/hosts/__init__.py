"""Torture on several hosts: `make hosts FS=... MINUTES=n`, on one Linux machine as root.

A host is a network namespace with two links, one to the network of NATS and one to that of the
storage, and with a mount of its own of the file system: to the kernel, two mounts are two hosts as
far as caches and locks go. Each host has a nats-server, joined in a cluster, a persist server and
clients; two have a coordinator. Links are pulled, slowed and made to lose packets, routes closed,
clocks set back, mounts and storage stopped, and processes killed, while the clients of
`tests.torture` work; its checker judges.

One kernel means one power supply: power cuts are not here.
"""

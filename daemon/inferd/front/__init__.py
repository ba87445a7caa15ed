"""The front process: sockets, clients, requests, children. It never imports torch."""

"""Forwards TCP ports, as a container engine does with `-p`: `relay.py PORT... HOST` listens on 127.0.0.1."""

import contextlib
import socket
import sys
import threading


def pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def serve(listener: socket.socket, target: tuple[str, int]) -> None:
    while True:
        accepted, _ = listener.accept()
        connected = socket.create_connection(target)
        for ends in ((accepted, connected), (connected, accepted)):
            threading.Thread(target=pump, args=ends, daemon=True).start()


if __name__ == "__main__":
    *ports, host = sys.argv[1:]
    threads = []
    for port in map(int, ports):
        listener = socket.create_server(("127.0.0.1", port))
        threads.append(threading.Thread(target=serve, args=(listener, (host, port))))
        threads[-1].start()
    sys.stdout.write("relaying\n")
    sys.stdout.flush()
    threads[0].join()

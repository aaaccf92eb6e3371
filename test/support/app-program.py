"""A program of a job for browsers, in raw HTTP, so that it can also answer what no library would send."""
import base64
import hashlib
import json
import socketserver
import sys
import threading

GO = threading.Event()
OPEN = set()


class App(socketserver.StreamRequestHandler):
    def handle(self):
        OPEN.add(self)
        try:
            while self.serve():
                self.wfile.flush()
        except (ConnectionError, ValueError):
            pass
        finally:
            OPEN.discard(self)

    def serve(self):
        line = self.rfile.readline().decode("latin1").strip()
        if not line:
            return False
        method, target, _ = line.split(" ")
        path, _, query = target.partition("?")
        headers = []
        while (header := self.rfile.readline().decode("latin1").strip()) != "":
            name, _, value = header.partition(":")
            headers.append((name.lower(), value.strip()))
        self.named = dict(headers)
        if path == "/early":
            self.answer("early", more="Connection: close\r\n")
            return False
        if path == "/close":
            return False
        if path == "/ws":
            self.websocket()
            return False
        body = self.body()
        if path == "/raw":
            self.wfile.write(body)
            return False
        if path == "/mute":
            self.rfile.read(1)
            return False
        if path == "/events":
            GO.clear()
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: one\n\n")
            self.wfile.flush()
            GO.wait()
            self.wfile.write(b"data: two\n\n")
            return False
        if path == "/go":
            GO.set()
            self.answer("gone on")
        elif path == "/digest":
            self.answer(f"{len(body)} {hashlib.sha256(body).hexdigest()}")
        elif path == "/bytes":
            self.answer(b"0123456789abcdef" * (int(query) // 16))
        elif path == "/open":
            self.answer(str(len(OPEN)))
        elif path == "/page":
            self.answer(PAGE, "text/html")
        else:
            self.answer(json.dumps({"line": line, "headers": headers}), "application/json")
        return True

    def body(self):
        if "chunked" not in self.named.get("transfer-encoding", ""):
            return self.rfile.read(int(self.named.get("content-length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer(self, content, type="text/plain", more=""):
        if isinstance(content, str):
            content = content.encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {type}\r\nContent-Length: {len(content)}\r\n{more}\r\n"
        self.wfile.write(head.encode())
        self.wfile.write(content)

    def websocket(self):
        """Echoes each frame, in pieces, with the same opcode."""
        key = self.named["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.wfile.write(
            f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Set-Cookie: ws=1; Domain=localhost\r\nSec-WebSocket-Accept: {accept}\r\n\r\n".encode()
        )
        while True:
            self.wfile.flush()
            head = self.rfile.read(2)
            if len(head) < 2:
                return
            length = head[1] & 127
            extended = b""
            if length >= 126:
                extended = self.rfile.read(2 if length == 126 else 8)
                length = int.from_bytes(extended, "big")
            mask = self.rfile.read(4)
            data = self.rfile.read(length)
            repeated = (mask * (length // 4 + 1))[:length]
            plain = int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")
            size = 127 if len(extended) == 8 else 126 if extended else length
            self.wfile.write(bytes([head[0], size]) + extended + plain.to_bytes(length, "big"))
            if head[0] & 15 == 8:
                return


PAGE = """<!doctype html><title>App</title><h1>The app</h1><p id="said">…</p><script>
const socket = new WebSocket(`ws://${location.host}/ws`);
socket.onopen = () => socket.send('hello from the page');
socket.onmessage = ({ data }) => { document.getElementById('said').textContent = `echo: ${data}`; };
</script>"""


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


with Server(("127.0.0.1", int(sys.argv[1])), App) as server:
    print("begun", flush=True)
    server.serve_forever()

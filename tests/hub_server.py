"""A small Hub on this machine: its HTTP protocol for downloads and commits, over folders OWNER/NAME below a root."""

import base64
import hashlib
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from huggingface_hub import constants, hf_api

COMMIT = "5" * 40


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, status, content=b"", **headers):
        content = json.dumps(content).encode() if isinstance(content, dict) else content
        self.send_response(status)
        for name, value in {"Content-Length": len(content), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_GET(self):
        repo, _, rest = self.path.lstrip("/").partition("/resolve/")
        revision, _, name = rest.partition("/")
        folder = self.server.root / repo
        if repo in self.server.gated:
            self.answer(403, X_Error_Code="GatedRepo")
        elif not folder.is_dir():
            self.answer(404, X_Error_Code="RepoNotFound")
        elif revision not in ("main", COMMIT):
            self.answer(404, X_Error_Code="RevisionNotFound")
        elif not (folder / name).is_file():
            self.answer(404, X_Error_Code="EntryNotFound")
        else:
            content = (folder / name).read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            self.answer(200, content, ETag=f'"{digest}"', X_Repo_Commit=COMMIT)

    do_HEAD = do_GET

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/api/validate-yaml":
            return self.answer(200, {"errors": [], "warnings": []})
        if not self.headers.get("Authorization"):
            return self.answer(401, {"error": "Invalid username or password."})
        if self.path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted['organization']}/{wanted['name']}"
            (self.server.root / name).mkdir(parents=True, exist_ok=True)
            self.server.created[name] = wanted
            return self.answer(200, {"url": f"{self.server.address}/{name}"})
        repo = self.path.removeprefix("/api/models/").rsplit("/", 2)[0]
        if "/preupload/" in self.path:
            files = [file["path"] for file in json.loads(body)["files"]]
            modes = [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in files]
            return self.answer(200, {"files": modes})
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                file = line["value"]
                (self.server.root / repo / file["path"]).write_bytes(base64.b64decode(file["content"]))
        return self.answer(
            200, {"commitUrl": f"{self.server.address}/{repo}/commit/{COMMIT}", "commitOid": COMMIT, "success": True}
        )


@contextmanager
def serve(root, monkeypatch):
    """huggingface_hub talks to this server while it runs; gives the server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.root, server.gated, server.created = root, set(), {}
        server.address = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        monkeypatch.setattr(hf_api.api, "endpoint", server.address)  # of the functions, which transformers 5.0 calls
        template = server.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()

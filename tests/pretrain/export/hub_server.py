"""A hub on 127.0.0.1 that speaks what huggingface_hub calls to create a model and to commit files to it."""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml
from huggingface_hub import ModelCardData
from huggingface_hub.repocard_data import model_index_to_eval_results

TOKEN = "hf_of_this_test"


class Hub(ThreadingHTTPServer):
    """What was created and committed. Use it as a context manager; `endpoint` is its HF_ENDPOINT.

    forbidden: repositories in which the token may not write.
    """

    def __init__(self, forbidden: tuple[str, ...] = ()) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.forbidden = forbidden
        self.visibility: dict[str, str] = {}
        self.stored: dict[str, bytes] = {}  # by sha256: the large files
        self.files: dict[str, dict[str, bytes]] = {}
        self.endpoint = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> "Hub":
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Requests(BaseHTTPRequestHandler):
    """Paths and bodies as in huggingface_hub's hf_api.py, lfs.py and _commit_api.py."""

    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, content: object, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        match = re.fullmatch(r"/api/models/([^/]+/[^/?]+).*", self.path)
        if match and match[1] in self.server.forbidden:
            self.answer({"id": match[1], "modelId": match[1]})
        else:
            self.answer({"error": "not found"}, 404)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        oid = self.path.rpartition("/")[2]
        assert hashlib.sha256(body).hexdigest() == oid
        self.server.stored[oid] = body
        self.answer({})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path = self.path.partition("?")[0]
        if path == "/api/validate-yaml":
            return self.validate(json.loads(body))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer({"error": "Invalid credentials"}, 401)
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        repo = re.match(r"(?:/api/models)?/([^/]+/[^/]+?)(?:\.git)?/", path)[1]
        if repo in self.server.forbidden:
            return self.answer({"error": "You have no write access"}, 403)
        if "/preupload/" in path:
            return self.preupload(json.loads(body))
        if path.endswith("/info/lfs/objects/batch"):
            return self.batch(json.loads(body))
        return self.commit(repo, [json.loads(line) for line in body.splitlines()])

    def create(self, wanted: dict) -> None:
        repo = f"{wanted['organization']}/{wanted['name']}"
        if repo in self.server.forbidden:
            return self.answer({"error": "You have no write access"}, 403)
        if repo in self.server.visibility:
            return self.answer({"error": "exists", "url": f"{self.server.endpoint}/{repo}"}, 409)
        self.server.visibility[repo] = wanted["visibility"]
        return self.answer({"url": f"{self.server.endpoint}/{repo}"})

    def validate(self, card: dict) -> None:
        data = yaml.safe_load(card["content"].split("---\n")[1])
        ModelCardData(**data)
        if "model-index" in data:
            model_index_to_eval_results(data["model-index"])
        self.answer({"errors": [], "warnings": []})

    def preupload(self, wanted: dict) -> None:
        modes = {True: "lfs", False: "regular"}
        files = [
            {
                "path": f["path"],
                "uploadMode": modes[f["path"].endswith(".safetensors")],
                "shouldIgnore": False,
            }
            for f in wanted["files"]
        ]
        self.answer({"files": files})

    def batch(self, wanted: dict) -> None:
        def actions(thing: dict) -> dict:
            if thing["oid"] in self.server.stored:
                return thing  # the hub has it: nothing to do
            return thing | {"actions": {"upload": {"href": f"{self.server.endpoint}/lfs/{thing['oid']}"}}}

        self.answer({"transfer": "basic", "objects": [actions(thing) for thing in wanted["objects"]]})

    def commit(self, repo: str, lines: list[dict]) -> None:
        files = self.server.files.setdefault(repo, {})
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.stored[value["oid"]]
        url = f"{self.server.endpoint}/{repo}/commit/{'0' * 40}"
        self.answer({"success": True, "commitOid": "0" * 40, "commitUrl": url, "hookOutput": ""})

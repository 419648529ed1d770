"""Upload an export to the Hugging Face hub as a model of its own."""

import json
import re
from pathlib import Path

import yaml
from huggingface_hub import CommitOperationAdd, HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError

from pretrain.common.errors import UserError
from pretrain.config.validation import read_yaml
from pretrain.export.folder import MARK, read_policy
from pretrain.export.model_card import hub_card, without_folders
from pretrain.export.sums import SUMS, WEIGHTS, evaluations_of

RECIPE = "training_config.yaml"


def require_repository(name: str) -> None:
    """Raise UserError if a name is not OWNER/NAME."""
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name):
        raise UserError(f"--push {name}: a model on the hub is written OWNER/NAME")


class Upload:
    """What goes to the hub: the files of an export, and its card.

    Of local paths in the recipe only the last name goes: a folder may name a person.
    """

    def __init__(self, export: Path, repo: str, report: Path) -> None:
        """report: the run's folder of evaluations; those of these weights are in the card."""
        require_repository(repo)
        if missing := [name for name in ("README.md", RECIPE, WEIGHTS) if not (export / name).is_file()]:
            raise UserError(f"--push {repo}: {export} lacks {' and '.join(missing)}; export it again")
        policy = read_policy(export)
        assert policy is not None  # of an export of ours
        self.repo = repo
        self.evaluations, self.other_evaluations = evaluations_of(export, report)
        self.card = hub_card(export, repo, policy, self.evaluations)
        recipe = without_folders(read_yaml(export / RECIPE))
        rewritten = {
            "README.md": str(self.card),
            MARK: json.dumps(without_folders(policy), indent=1, ensure_ascii=False) + "\n",
            RECIPE: yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True),
        }
        self.files: dict[str, bytes | Path] = {
            path.relative_to(export).as_posix(): path
            for path in sorted(export.rglob("*"))
            if path.is_file() and path.name != SUMS  # of files as they are here
        }
        self.files |= {name: text.encode() for name, text in rewritten.items()}

    def send(self, public: bool) -> str:
        """Make the repository if there is none, and commit all files at once; return the commit's address.

        A repository that exists keeps its visibility, and files of other names.
        """
        api = HfApi()
        if get_token() is None:
            raise UserError(f"--push {self.repo}: no token. `hf auth login`, or set HF_TOKEN")
        operations = [CommitOperationAdd(name, content) for name, content in self.files.items()]
        try:
            api.create_repo(self.repo, private=not public, exist_ok=True)
            message = "Upload a sentence encoder"
            return api.create_commit(self.repo, operations, commit_message=message).commit_url
        except HfHubHTTPError as error:
            said = f"{error.response.status_code}: {error.server_message or str(error).splitlines()[0]}"
            raise UserError(f"--push {self.repo}: {api.endpoint} refuses ({said})") from error
        except Exception as error:  # of its HTTP library, which differs by version
            raise UserError(f"--push {self.repo}: cannot send to {api.endpoint} ({error!r})") from error

"""Files on the Hugging Face Hub: found, downloaded, uploaded. What goes wrong there is told in one line.

huggingface_hub is imported when it is needed: the core does without it.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

CONFIG = "config.json"
CARD = "README.md"
NAME = r"\w[\w.-]*/\w[\w.-]*"  # of a model on the Hub
PLACEHOLDER = "OWNER/NAME"  # in a card that was written before its model had a name


class HubOptions(NamedTuple):
    """Those of huggingface_hub's downloads."""

    revision: str | None = None  # a branch, a tag or a commit; None for main
    cache_dir: str | Path | None = None  # None for ~/.cache/huggingface/hub, or what HF_HUB_CACHE says
    token: str | bool | None = None  # None for what `hf auth login` stored
    local_files_only: bool = False
    force_download: bool = False


def is_hub_name(source: str | Path) -> bool:
    """Whether it may be a name on the Hub, owner/name; not where its first part is a folder here."""
    name = str(source)
    is_file = Path(name).suffix in (".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".json")
    return re.fullmatch(NAME, name) is not None and not is_file and not Path(name).parent.is_dir()


def check_hub_name(name: str) -> None:
    if not re.fullmatch(NAME, name):
        raise ValueError(f"a name on the Hub is OWNER/NAME, of letters, digits, '-', '_' and '.'; got {name!r}.")


def download(name: str, file: str, options: HubOptions | None = None) -> Path:
    """A file of a model on the Hub, from the local cache where it is there and up to date.

    Where its address cannot be looked up the Hub is not asked: huggingface_hub would try for half a minute, after a
    mistyped path too.
    """
    from huggingface_hub import hf_hub_download

    options = options or HubOptions()
    why = "" if options.local_files_only or options.force_download else _why_unreachable()
    if why:
        options = options._replace(local_files_only=True)
    with hub_errors(name, file, options.revision, why):
        return Path(hf_hub_download(name, file, **options._asdict()))


def _why_unreachable() -> str:
    """Why the Hub's address is not known here; empty if it is, if a proxy looks it up, and where it is not asked."""
    from huggingface_hub import constants

    if not (constants.HF_HUB_OFFLINE or getproxies().keys() - {"no"}):  # no_proxy is none
        try:
            if host := urlsplit(constants.ENDPOINT).hostname:
                socket.getaddrinfo(host, None)
        except (OSError, ValueError) as error:
            return _first_line(error)
    return ""


def upload(folder: Path, name: str, *, private: bool | None = None) -> str:
    """Uploads a folder as one commit, into a new repository if there is none; returns its address.

    A card without a name gets this one.
    """
    from huggingface_hub import HfApi

    with hub_errors(name):
        api = HfApi()
        name = api.create_repo(name, private=private, exist_ok=True).repo_id
        card = folder / CARD
        if card.is_file() and PLACEHOLDER in (text := card.read_text(encoding="utf-8")):
            card.write_text(text.replace(PLACEHOLDER, name), encoding="utf-8")
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload a model of cacseg")
        return f"{api.endpoint}/{name}"


@contextmanager
def hub_errors(name: str, file: str = "", revision: str | None = None, why: str = "") -> Iterator[None]:
    """One line for what the Hub, or the way to it, answers; `why` it was not asked."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError:
        raise PermissionError(
            f"{name} is gated: ask for access at https://huggingface.co/{name}, then log in with `hf auth login`."
        ) from None
    except errors.RepositoryNotFoundError:
        raise FileNotFoundError(
            f"{name} must be a file, a folder or a name on the Hugging Face Hub: there is none here, and the Hub has "
            "no such model or it is private. Check the name; for a private one log in with `hf auth login`."
        ) from None
    except errors.RevisionNotFoundError:
        raise FileNotFoundError(f"{name} has no revision {revision!r}. Leave revision out for the newest.") from None
    except errors.LocalEntryNotFoundError as error:
        cause = error.__cause__
        reason = why or ("local_files_only=True" if cause is None else _first_line(cause))
        raise FileNotFoundError(
            f"{name} must be a file, a folder or a name on the Hugging Face Hub: there is none here, its {file} is not "
            f"in the local cache, and the Hub was not reached ({reason}). Check the path, or the network and "
            "HF_HUB_OFFLINE; without a network, copy the model's folder here and give its path."
        ) from None
    except errors.EntryNotFoundError:
        raise FileNotFoundError(
            f"{name} on the Hub has no {file}: it holds no such model of ours. `model.push_to_hub` and `cacseg hub` "
            "write one."
        ) from None
    except errors.HFValidationError:
        raise ValueError(f"the Hub takes names of other letters, or shorter ones; got {name!r}.") from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise PermissionError(
                f"the Hub refuses access to {name} ({status}). Check the owner's name, and log in with "
                "`hf auth login`; to upload, with a token that may write."
            ) from None
        reason = " ".join((error.server_message or _first_line(error)).split())
        raise ConnectionError(f"the Hub answered {status} for {name}: {reason}.") from None
    except errors.LocalTokenNotFoundError:
        raise PermissionError(f"{name} needs you to be logged in: `hf auth login`.") from None
    except ValueError as error:  # the metadata of a card that the Hub does not take
        raise ValueError(f"{name}: {' '.join(str(error).split())}") from None
    except OSError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith("http"):  # httpx and its parts
            raise
        raise ConnectionError(
            f"the Hub was not reached for {name} ({_first_line(error)}). Check the network."
        ) from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")

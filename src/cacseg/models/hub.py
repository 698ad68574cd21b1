"""Models on the Hugging Face Hub, by the methods that its libraries have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub import ModelCard, ModelHubMixin

from cacseg._files import write_file
from cacseg._hub import CONFIG, hub_errors
from cacseg._text import parse_json
from cacseg.models.files import FORMAT, NAMES

if TYPE_CHECKING:
    from cacseg.models.model import SegmentationModel


class HubModel(ModelHubMixin):
    """`save_pretrained`, `from_pretrained` and `push_to_hub` of `SegmentationModel`.

    A folder holds model.safetensors, the file of `model.save`; config.json, its description once more, for readers and
    for the Hub; and README.md, the model card.
    """

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> str | None:
        """Writes the folder that `from_pretrained` and `cacseg.load` read; options are those of `ModelHubMixin`.

        A model that is there already is replaced, a README.md is kept. `model_card_kwargs` are the arguments of
        `cacseg.models.card.make_card`: `{"license": "cc-by-4.0"}`.
        """
        config = Path(save_directory) / CONFIG
        if config.is_file() and not _is_ours(config):  # the mixin would remove it: that of a run, for one
            raise FileExistsError(
                f"{config} is no description of a model, but of a run or another library. Choose another folder."
            )
        return super().save_pretrained(save_directory, **options)

    @classmethod
    def from_pretrained(  # type: ignore[override]  # without arguments of the model: the file has them
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        device: str | torch.device = "cpu",
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        token: str | bool | None = None,
        local_files_only: bool = False,
        force_download: bool = False,
    ) -> SegmentationModel:
        """The same as `cacseg.load`: of a folder, a file, or a name on the Hub."""
        from cacseg.models.saved import load

        return load(
            pretrained_model_name_or_path,
            device,
            revision=revision,
            cache_dir=cache_dir,
            token=token,
            local_files_only=local_files_only,
            force_download=force_download,
        )

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Uploads what `save_pretrained` writes, into a new repository if there is none; options are the mixin's."""
        options["model_card_kwargs"] = {"name": repo_id, **(options.get("model_card_kwargs") or {})}
        with hub_errors(repo_id):
            return super().push_to_hub(repo_id, **options)

    def generate_model_card(self, *_: Any, **facts: Any) -> ModelCard:
        """The README.md of `save_pretrained`."""
        from cacseg.models.card import make_card

        return make_card(self, **facts)  # type: ignore[arg-type]

    def _save_pretrained(self, save_directory: Path) -> None:
        model: SegmentationModel = self  # type: ignore[assignment]
        model.save(save_directory / "model.safetensors", overwrite=True)
        described = {key: text if key in NAMES else json.loads(text) for key, text in model.describe().items()}
        write_file(save_directory / CONFIG, json.dumps(described, indent=2) + "\n")


def _is_ours(config: Path) -> bool:
    try:
        return bool(parse_json(config.read_bytes())["format"] == FORMAT)
    except (ValueError, KeyError, TypeError):
        return False

"""What `trust_remote_code=True` runs: gatebench reads the model of this directory.

gatebench's export copies this file beside the weights.
"""

from __future__ import annotations

from typing import Any

try:
    from gatebench import hf
    from gatebench.hf.load import foreign_config
except ImportError as error:
    raise ImportError(f"this model is read by gatebench: pip install 'gatebench[hf]' ({error})") from None


class GatebenchConfig(hf.GatebenchConfig):
    """A variant and its shape."""

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Return the config that config.json, in gatebench's words or in the released code's, stands for."""
        if config_dict.get("model_type") != cls.model_type:
            config_dict = foreign_config(config_dict, "config.json").to_dict() | {
                "auto_map": config_dict.get("auto_map")
            }
        return super().from_dict(config_dict, **kwargs)


class GatebenchForCausalLM(hf.GatebenchForCausalLM):
    """Any variant as a causal LM."""

    config_class = GatebenchConfig

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, name: Any, *args: Any, config: Any = None, dtype: Any = None, **kwargs: Any
    ) -> Any:
        """Return the model of a directory or hub id, in eval mode, in `dtype` or as it is stored."""
        folder = kwargs.get("subfolder")
        model, _ = hf.load(f"{name}/{folder}" if folder else name)
        model.__class__, model.config = cls, config or model.config
        dtype = dtype or kwargs.get("torch_dtype")
        return model if dtype in (None, "auto") else model.to(dtype)

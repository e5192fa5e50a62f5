"""The model as a causal LM of `transformers`: `load`, `from_run`, `export` and the Auto classes (docs/huggingface.md).

Importing it registers `GatebenchConfig` and `GatebenchForCausalLM`, so that `AutoModelForCausalLM.from_pretrained`
reads a gatebench directory. Needs the extra `hf`: without it, or with a transformers outside `versions.SUPPORTED`,
`WrongTransformers` is raised, a UserError and an ImportError.
"""

from __future__ import annotations

from gatebench.hf.versions import check_transformers

check_transformers()

from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from gatebench.hf.config import GatebenchConfig  # noqa: E402
from gatebench.hf.export import export  # noqa: E402
from gatebench.hf.load import from_run, load  # noqa: E402
from gatebench.hf.modeling import GatebenchForCausalLM  # noqa: E402

AutoConfig.register(GatebenchConfig.model_type, GatebenchConfig, exist_ok=True)
AutoModelForCausalLM.register(GatebenchConfig, GatebenchForCausalLM, exist_ok=True)

__all__ = ["GatebenchConfig", "GatebenchForCausalLM", "export", "from_run", "load"]

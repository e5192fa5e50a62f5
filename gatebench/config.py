"""What a recipe and a run are made of: typed, documented, strict. `recipes.py` reads them. Imports no torch.

A recipe (YAML in `experiments/`) is everything that a run needs except its variant and seed. Every key has a default
and a docstring; unknown keys are refused with the nearest legal ones. A new key goes into `BEFORE` of `identity.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from gatebench import variants
from gatebench.errors import UserError
from gatebench.identity import fingerprint
from gatebench.validation import Section, one_line
from gatebench.variants import Variant


class MoEConfig(Section):
    """A mixture of fine-grained SwiGLU experts in place of every feed-forward layer (docs/moe.md)."""

    n_experts: int = Field(ge=2)
    """Experts in a layer (E)."""
    top_k: int = Field(ge=1)
    """Experts that each token goes through (K): the ones with the largest router probabilities."""
    expert_dim: int = Field(ge=1)
    """Inner size of one expert; multiples of 8 are fastest."""
    norm_topk_prob: bool = True
    """Divide the top_k probabilities by their sum before they weigh the experts' outputs."""
    lbl_coef: float = Field(1e-2, ge=0)
    """Coefficient of the load-balancing loss, in lbl_convention."""
    lbl_convention: Literal["megatron", "transformers"] = "megatron"
    """megatron: one loss a layer, 1 when uniform, layers add. transformers: layers are pooled, top_k when uniform."""
    lbl_scope: Literal["global_batch", "running", "micro_batch"] = "global_batch"
    """Tokens whose loads balance: those of the optimiser step on all devices (exact: where batches are accumulated, a
    forward pass counts first), of the step so far (Algorithm 1 of arXiv 2501.11873), or of one micro-batch."""
    z_loss_coef: float = Field(1e-3, ge=0)
    """Coefficient of the router z-loss, which layers add: mean over tokens of logsumexp(router logits)²."""

    @model_validator(mode="after")
    def _routable(self) -> MoEConfig:
        if self.top_k > self.n_experts:
            raise ValueError(
                f"model.moe.top_k={self.top_k}: there are model.moe.n_experts={self.n_experts}; "
                f"legal: 1 to {self.n_experts}"
            )
        return self


class RopeScalingConfig(Section):
    """YaRN, in transformers' words (docs/long_context.md): fast frequencies stay, slow ones are divided by `factor`."""

    rope_type: Literal["yarn"] = "yarn"
    factor: float = Field(ge=1)
    """How many times longer the context becomes."""
    original_max_position_embeddings: int = Field(ge=1)
    """The context that the model was trained at."""
    beta_fast: float = Field(32.0, gt=0)
    """Pairs of dimensions that turn more often than this over the original context stay as they are."""
    beta_slow: float = Field(1.0, gt=0)
    """Pairs that turn less often are slowed by the whole factor; in between the change is linear."""
    attention_factor: float | None = Field(None, gt=0)
    """What cos and sin are multiplied by; null means 0.1 ln(factor) + 1."""
    truncate: bool = True
    """Round the two borders to whole pairs."""

    @model_validator(mode="after")
    def _ordered(self) -> RopeScalingConfig:
        if self.beta_fast < self.beta_slow:
            raise ValueError(
                f"model.rope_scaling.beta_fast={self.beta_fast:g}: legal: beta_slow={self.beta_slow:g} or more"
            )
        return self


class ModelConfig(Section):
    """The decoder-only transformer of the paper's Table 7: GQA, QK-norm, RoPE, SwiGLU, RMSNorm, pre-norm."""

    n_layers: int = Field(4, ge=1)
    d_model: int = Field(192, ge=1)
    n_heads: int = Field(4, ge=1)
    """Query heads."""
    n_kv_heads: int = Field(2, ge=1)
    head_dim: int = Field(48, ge=2)
    """Size of one head; n_heads * head_dim need not be d_model."""
    ffn_dim: int = Field(512, ge=1)
    """Inner size of the SwiGLU feed-forward layer; with experts that of each, and follows from moe.expert_dim."""
    moe: MoEConfig | None = None
    """Experts in place of every feed-forward layer; null means none (dense)."""
    vocab_size: int = Field(4096, ge=4)
    """Must be the vocabulary of the corpus."""
    tie_embeddings: bool = True
    qk_norm: bool = True
    qkv_bias: bool = False
    """One flag for q, k, v, o and the gates, as in the released code."""
    rope_theta: float = Field(10_000.0, gt=1)
    rope_scaling: RopeScalingConfig | None = None
    """YaRN, in training and evaluation alike; null means plain RoPE."""
    norm_eps: float = Field(1e-6, gt=0)
    context_length: int | None = Field(None, ge=1)
    """Training context that kernels such as sigmoid attention scale by, whatever they read; null means data.seq_len."""
    init_std: float = Field(0.02, gt=0)
    """Standard deviation of every weight matrix and embedding (released code: 0.02)."""
    gate_init_std: float | None = Field(None, ge=0)
    """Standard deviation of gate matrices; null means init_std, so that a sigmoid gate starts near one half."""
    depth_scaled_init: bool = False
    """Divide the init of o_proj and down_proj by sqrt(2 * n_layers) (GPT-2); the released code does not."""

    @model_validator(mode="after")
    def _shapes(self) -> ModelConfig:
        if self.head_dim % 2:
            raise ValueError(f"model.head_dim={self.head_dim}: must be even (RoPE rotates pairs of dimensions)")
        if self.n_heads % self.n_kv_heads:
            divisors = [n for n in range(1, min(self.n_heads, 4096) + 1) if self.n_heads % n == 0]
            raise ValueError(
                f"model.n_heads={self.n_heads} is not a multiple of model.n_kv_heads={self.n_kv_heads}; "
                f"legal n_kv_heads: {', '.join(map(str, divisors))}"
            )
        if self.moe is not None:
            if "ffn_dim" in self.model_fields_set and self.ffn_dim != self.moe.expert_dim:
                raise ValueError(
                    f"model.ffn_dim={self.ffn_dim}: with experts it is model.moe.expert_dim={self.moe.expert_dim}; "
                    f"legal: that, or model.ffn_dim left out"
                )
            self.ffn_dim = self.moe.expert_dim
        return self


SYNTHETIC_CORPORA = ("bigram_backcopy",)
"""Names of `data.corpus` that are made as they are read, and never built."""


class SyntheticConfig(Section):
    """A bigram-backcopy process (docs/sinks.md): a Markov chain, and triggers after which the next token is a copy.

    The vocabulary is BOS, the ordinary tokens and the triggers: 1 + n_tokens + n_triggers.
    """

    n_tokens: int = Field(64, ge=2, le=1024)
    """Ordinary tokens, between which the chain moves."""
    n_triggers: int = Field(3, ge=1, le=64)
    """After a trigger the next token copies the one before the trigger."""
    trigger_rate: float = Field(0.1, ge=0, lt=1)
    """Probability that a trigger follows an ordinary token; 0 leaves a Markov chain alone."""
    concentration: float = Field(0.1, gt=0)
    """Of the Dirichlet distribution that each row of the transition matrix is drawn from; small is predictable."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Of the transition matrix and the held-out sequences; the training sequences follow the data seed, too."""


class RetrievalConfig(Section):
    """Retrieval documents among the windows of text (docs/long_context.md): facts, and questions that they answer."""

    share: float = Field(0.5, gt=0, le=1)
    """Share of training sequences that are such documents."""
    max_facts: int = Field(8, ge=1, le=100)
    """Facts in a document: one to this many, equally often."""
    noise_share: float = Field(0.3, ge=0, le=1)
    """Share of documents whose facts stand among a few repeated sentences, in place of the corpus's text."""
    digits: int = Field(7, ge=1, le=7)
    """Digits of a value; with fewer, a model learns sooner and guesses better."""
    shortest: int | None = Field(None, ge=8)
    """Of every second training sequence: tokens of its shortest documents, of which it then has as many as fit, of
    lengths spread evenly in their logarithm; null means that every document fills its sequence."""
    question_every: int | None = Field(None, ge=4)
    """A training document of L tokens asks 1 to L / this questions, each for any of its facts; null means that each
    fact is asked for once, as in held-out documents."""


class DataConfig(Section):
    """What the model reads."""

    corpus: str = "six_domains"
    """Name of a built corpus, or the path of one (see `gatebench data build`); or bigram_backcopy, which is made."""
    seq_len: int = Field(256, ge=8)
    """Tokens that the model sees at once, the BOS token included."""
    bos: bool = True
    """Begin every window with the constant BOS token."""
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    """Seed of the data order; null means the run's seed. The order is a pure function of (this seed, step)."""
    mixture: Literal["proportional", "uniform"] | dict[str, float] = "proportional"
    """Share of each domain: by tokens, equal, or weights by name."""
    synthetic: SyntheticConfig | None = None
    """What bigram_backcopy is made of; null with any other corpus."""
    retrieval: RetrievalConfig | None = None
    """Retrieval documents in training, beside the corpus's text; null means none."""

    @model_validator(mode="after")
    def _synthetic(self) -> DataConfig:
        if self.corpus not in SYNTHETIC_CORPORA:
            if self.synthetic is not None:
                raise ValueError(
                    f"data.synthetic: does not go with data.corpus={self.corpus!r}; "
                    f"legal: data.corpus={' or '.join(SYNTHETIC_CORPORA)}, or data.synthetic=null"
                )
            return self
        if self.retrieval is not None:
            raise ValueError(f"data.retrieval: hides facts in text, and '{self.corpus}' is none; legal: null")
        if self.mixture != "proportional":
            raise ValueError(f"data.mixture={self.mixture!r}: '{self.corpus}' has one domain; legal: proportional")
        if self.synthetic is None:
            self.synthetic = SyntheticConfig()
        return self


class OptimConfig(Section):
    """AdamW with warm-up and decay to a floor."""

    lr: float = Field(3e-3, gt=0)
    """Peak learning rate."""
    min_lr_ratio: float = Field(0.1, ge=0, le=1)
    """Floor of the schedule as a share of lr."""
    warmup_steps: int = Field(50, ge=0)
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    weight_decay: float = Field(0.1, ge=0)
    decay_embeddings: bool = False
    """Apply weight decay to the token embedding (and so to a tied output layer)."""
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0)
    grad_clip: float | None = Field(1.0, gt=0)
    """Largest global gradient norm; null does not clip (the norm is recorded all the same)."""
    gate_lr_multiplier: float = Field(1.0, gt=0)
    """Learning rate of gate parameters relative to the rest."""


class TrainConfig(Section):
    """How long, in what precision, on what."""

    steps: int = Field(400, ge=1)
    batch_size: int = Field(16, ge=1)
    """Sequences per optimiser step, over all devices and micro-batches."""
    micro_batch_size: int | None = Field(None, ge=1)
    """Sequences per forward pass and device; null means batch_size / devices (no accumulation)."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """bf16 is bf16 mixed precision; auto takes it where the hardware multiplies it natively."""
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile of each block; auto compiles on CUDA, and on a CPU for long runs (docs/training.md)."""
    recompute: bool = False
    """Keep only each block's input for the backward pass and compute the rest again: less memory, a third more work."""
    accelerator: Literal["auto", "cpu", "gpu", "mps"] = "auto"
    devices: int = Field(1, ge=1)
    """Processes per node."""
    num_nodes: int = Field(1, ge=1)
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """How several devices share the work: ddp copies the model to each, fsdp (FSDP2) gives each a share of it."""
    checkpoint_every: int = Field(50, ge=1)
    """Steps between checkpoints to resume from; the newest two are kept."""
    snapshot_every: int | None = Field(None, ge=1)
    """Steps between copies of the weights that stay, for `gatebench probe --every-checkpoint`; null keeps none."""
    watch_every: int | None = Field(None, ge=1)
    """Steps between measurements of the largest logits, activations and updates (docs/stability.md); null: none."""
    log_every: int = Field(10, ge=1)
    """Steps between reads of the metrics from the device; every step is recorded all the same."""
    loggers: list[Literal["csv", "tensorboard", "wandb"]] = Field(default_factory=list)
    """Loggers besides metrics.jsonl, which is always written."""


class EvalConfig(Section):
    """What is measured on the held-out documents when training ends."""

    tokens_per_domain: int | None = Field(32_768, ge=64)
    """Held-out tokens scored per domain; null scores all."""
    probe_tokens: int = Field(32_768, ge=8)
    """Held-out tokens that the probes read (whole windows over all domains). A maximum grows with this number."""
    batch_size: int = Field(16, ge=1)
    """Sequences per forward pass; no result depends on it."""
    seq_len: int | None = Field(None, ge=8)
    """Context length; null means data.seq_len."""


class Recipe(Section):
    """Everything but variant and seed."""

    description: str = ""
    model: ModelConfig = Field(default_factory=ModelConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    optim: OptimConfig = Field(default_factory=OptimConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    param_match: Literal["none", "ffn", "flops"] = "none"
    """Change ffn_dim until the variant has the baseline's parameters (ffn), or its FLOPs a training token (flops)."""

    @model_validator(mode="after")
    def _sections_agree(self) -> Recipe:
        if (moe := self.model.moe) is not None and moe.norm_topk_prob and moe.top_k == 1:
            raise ValueError(
                "model.moe.norm_topk_prob=true: with top_k=1 every weight would be 1 and the loss would teach the "
                "router nothing; legal: false, or top_k of at least 2"
            )
        if self.data.synthetic is not None and self.eval.tokens_per_domain is None:
            raise ValueError(f"eval.tokens_per_domain=null: '{self.data.corpus}' has no end; legal: a number")
        train = self.train
        world = train.devices * train.num_nodes
        micro = train.micro_batch_size or train.batch_size // world
        if micro == 0 or train.batch_size % (micro * world):
            raise ValueError(
                f"train.batch_size={train.batch_size}: must be a multiple of micro_batch_size x devices x num_nodes "
                f"= {train.micro_batch_size or 'batch_size / devices'} x {train.devices} x {train.num_nodes}"
            )
        if self.optim.warmup_steps >= train.steps and self.optim.schedule != "constant":
            raise ValueError(f"optim.warmup_steps={self.optim.warmup_steps}: must be below train.steps={train.steps}")
        return self


class InitConfig(Section):
    """The trained run whose weights another begins with (`gatebench extend`)."""

    run: str
    """Its name, as below `results/runs`: recipe, variant, seed and fingerprint."""
    path: str | None = None
    """Its directory; null means results/runs/<run>."""
    weights_sha256: str | None = None
    """Hash of the weights; filled in when the run is prepared."""


class RunConfig(Recipe):
    """One run, fully resolved: what `config.yaml` of a run directory holds."""

    recipe: str
    variant: str
    seed: int = Field(0, ge=0, lt=2**63)
    overrides: list[str] = Field(default_factory=list)
    corpus_fingerprint: str | None = None
    """Identity of the corpus that the run reads; filled in when the run is prepared."""
    init: InitConfig | None = None
    """Where the weights come from that training begins with; null means initial values of its own."""

    _spec: Variant = PrivateAttr()
    _shape: ModelConfig = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Parse the variant and apply it, once. Raises UserError for what the recipe cannot have."""
        self._spec = variants.get(self.variant)
        self.variant = self._spec.name
        self._shape = resolve(self, self._spec)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> RunConfig:
        """Return a copy with the fields of `update`, resolved anew where these are what that depends on."""
        copied = super().model_copy(update=update, deep=deep)
        if {"variant", "model", "data"} & set(update or ()):
            copied.model_post_init(None)
        return copied

    @property
    def spec(self) -> Variant:
        """The variant, parsed."""
        return self._spec

    @property
    def shape(self) -> ModelConfig:
        """The model with the variant applied, before `param_match` (`model/accounting.py`)."""
        return self._shape

    @property
    def data_seed(self) -> int:
        """Seed of the data order."""
        return self.seed if self.data.seed is None else self.data.seed

    @property
    def micro_batch_size(self) -> int:
        """Sequences per forward pass and device."""
        return self.train.micro_batch_size or self.train.batch_size // (self.train.devices * self.train.num_nodes)

    @property
    def accumulate(self) -> int:
        """Micro-batches per optimiser step."""
        return self.train.batch_size // (self.micro_batch_size * self.train.devices * self.train.num_nodes)

    @property
    def fingerprint(self) -> str:
        """Eight hex digits over everything that can change the result."""
        return fingerprint(self)

    @property
    def run_name(self) -> str:
        """Name of the run below `results/runs`: recipe, variant, seed, and the fingerprint of the rest."""
        return f"{self.recipe}/{self.variant}-s{self.seed}-{self.fingerprint}"


def resolve(recipe: Recipe, variant: Variant) -> ModelConfig:
    """Return the shape of a variant under a recipe: the variant's ratios applied, the context's length set.

    Raises UserError where a ratio gives no whole number, or a design has no meaning for so many heads.
    """
    content = recipe.model.model_dump()
    variant.scale(content)
    content["context_length"] = recipe.model.context_length or recipe.data.seq_len
    try:
        model = ModelConfig.model_validate(content)
    except ValidationError as error:
        raise UserError(f"variant '{variant.name}': {one_line(error, ModelConfig)}") from None
    variant.design.check_heads(model.n_heads, model.n_kv_heads, variant.name)
    return model

"""Hugging Face `trl`: GRPO whose clip is replaced by an exact KL trust region around each token's old policy."""

from trpl.messages import needs

with needs("trl"):
    from trpl.integrations.trl.config import TrustRegionGRPOConfig
    from trpl.integrations.trl.trainer import TrustRegionGRPOTrainer

__all__ = ["TrustRegionGRPOConfig", "TrustRegionGRPOTrainer"]

"""Headers of the models that the presets name, as their files have them: what tests plan for without the files."""

from beeyard.budget import Weights
from beeyard.catalog import Gguf

FULL = list(range(5, 60, 6))
GEMMA = Weights(
    Gguf(
        architecture="gemma4", layers=60, heads=32, kv_heads=[4 if layer in FULL else 16 for layer in range(60)],
        key_length=512, value_length=512, key_length_swa=256, value_length_swa=256, embedding=5376, context=262144,
        window=1024, full_layers=FULL, feed_forward=21504, words=262144,
    ),
    17_700_000_000,
)  # fmt: skip
GEMMA_DRAFT = Weights(
    Gguf(
        architecture="dflash", layers=5, heads=64, kv_heads=8, key_length=128, value_length=128, embedding=5376,
        feed_forward=10752, block=16, window=2048, full_layers=[4], words=262144,
    ),
    1_040_000_000,
)  # fmt: skip
QWEN = Weights(
    Gguf(
        architecture="qwen35", layers=64, heads=24, kv_heads=4, key_length=256, value_length=256, embedding=5120,
        context=262144, words=248320, attention_every=4, ssm_convolution=4, ssm_inner=6144, ssm_state=128,
        ssm_groups=16,
    ),
    18_600_000_000,
)  # fmt: skip

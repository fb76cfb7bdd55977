"""Makes a model of Qwen2.5-1.5B's shape with random bfloat16 weights and the quickstart's tokenizer.

python bench/inputs/random_qwen.py FOLDER [LAYERS HIDDEN]
"""

import shutil
import sys
from pathlib import Path

import torch
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

folder = Path(sys.argv[1])
layers, hidden = (int(part) for part in sys.argv[2:4]) if len(sys.argv) > 2 else (28, 1536)
torch.manual_seed(0)
torch.set_default_dtype(torch.bfloat16)
model = Qwen2ForCausalLM(
    Qwen2Config(
        vocab_size=151936 if hidden == 1536 else 640,
        hidden_size=hidden,
        intermediate_size=hidden * 35 // 6 // 64 * 64,  # 8960 at 1536
        num_hidden_layers=layers,
        num_attention_heads=hidden // 128,
        num_key_value_heads=max(1, hidden // 768),
        max_position_embeddings=4096,
        rope_theta=1e6,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=4,
        pad_token_id=0,
    )
)
model.generation_config = GenerationConfig(eos_token_id=4, pad_token_id=0)
model.save_pretrained(folder)
tokenizer = Path(__file__).parent.parent.parent / "configs" / "quickstart" / "model"
for path in tokenizer.iterdir():
    if not (folder / path.name).exists() and path.suffix != ".safetensors":
        shutil.copyfile(path, folder / path.name)

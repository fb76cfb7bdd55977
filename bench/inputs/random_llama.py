"""Makes a Llama of random bfloat16 weights and adapters. python ... FOLDER LAYERS HIDDEN SHARD_BYTES RANK..."""

import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

folder = Path(sys.argv[1])
layers, hidden, shard, *ranks = map(int, sys.argv[2:])
torch.manual_seed(0)
torch.set_default_dtype(torch.bfloat16)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=32000,
        hidden_size=hidden,
        intermediate_size=11 * hidden // 4,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 128,
        num_key_value_heads=max(1, hidden // 256),
        tie_word_embeddings=False,
    )
)
model.save_pretrained(folder / "base", max_shard_size=shard)
torch.set_default_dtype(torch.float32)
for rank in ranks:
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", init_lora_weights=False)
    adapted = get_peft_model(model, config)
    adapted.save_pretrained(str(folder / f"r{rank}"))
    model = adapted.unload()

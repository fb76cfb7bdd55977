"""Named starting points for `training:`, each a set of GRPOConfig values that a person's own keys override.

`memory-optimised` and `high-throughput` follow the two settings of the GRPO fine-tuning guide this product implements
(small GPU, large GPU), made right for TRL 1.16: batch times accumulation is a multiple of G, the warm-up share is
`warmup_steps` below 1, and prompt limits belong to `data.max_prompt_tokens`. `cpu-smoke` is for machines without a GPU.
"""

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    "memory-optimised": {
        "learning_rate": 5e-6,
        "adam_beta1": 0.9,
        "adam_beta2": 0.99,
        "weight_decay": 0.1,
        "warmup_steps": 0.1,
        "lr_scheduler_type": "cosine",
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 8,
        "num_generations": 8,
        "max_completion_length": 512,
        "optim": "adamw_8bit",
        "max_grad_norm": 0.1,
        "num_train_epochs": 1.0,
        "logging_steps": 1,
        "save_steps": 100,
        "gradient_checkpointing": True,
    },
    "high-throughput": {
        "learning_rate": 1e-5,
        "adam_beta1": 0.9,
        "adam_beta2": 0.99,
        "weight_decay": 0.1,
        "warmup_steps": 0.1,
        "lr_scheduler_type": "cosine",
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "num_generations": 16,
        "max_completion_length": 1024,
        "max_grad_norm": 0.1,
        "num_train_epochs": 1.0,
        "logging_steps": 10,
        "save_steps": 100,
        "gradient_checkpointing": True,
    },
    "cpu-smoke": {
        "learning_rate": 2e-4,
        "warmup_steps": 0,
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "num_generations": 8,
        "max_completion_length": 48,
        "max_steps": 10,
        "logging_steps": 1,
        "save_steps": 5,
        "gradient_checkpointing": False,
        "optim": "adamw_torch",
        "use_cpu": True,
        "dataloader_pin_memory": False,
    },
}

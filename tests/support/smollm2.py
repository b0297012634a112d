"""The embedded SmolLM2 as transformers understands it: the reference of the real-model tests."""

import functools
from typing import Any

import transformers
from transformers import modeling_gguf_pytorch_utils as gguf_reading

from forebay.exec.embedded import embedded_model_path

# From the model card; what the file says is compared below.
_CONFIG = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}


@functools.cache
def transformers_smollm2() -> Any:
    """The model in float32, its tensors read by transformers (about 10 s, once a session).

    `from_pretrained` with a GGUF file would need accelerate, which nothing else here does.
    """
    transformers.utils.logging.disable_progress_bar()
    rope = {"rope_theta": 100_000.0, "rope_type": "default"}
    config = transformers.LlamaConfig(**_CONFIG, rms_norm_eps=1e-5, rope_parameters=rope)
    model = transformers.LlamaForCausalLM(config).eval()
    path = str(embedded_model_path())
    read = gguf_reading.load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)
    assert read["config"].items() >= {**_CONFIG, "rope_theta": 100_000.0}.items()
    missing = model.load_state_dict(read["tensors"], strict=False).missing_keys
    assert missing == ["lm_head.weight"]  # tied
    return model

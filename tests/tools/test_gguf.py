"""A GGUF file becomes a model folder: the same weights, tokens, template and special tokens."""

import json
from pathlib import Path

import grpo
from common.models import eos_ids, load_model
from tools.gguf import CUTS, check_tokenizer, convert

import gguf
import pytest
import torch
from conftest import CHAT_TEMPLATE
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}


SIZES = dict(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=256, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 5e5},
)  # fmt: skip


def as_stored(name, weight, architecture, config):
    """A weight as llama.cpp's converter stores it: RoPE's pairs are adjacent in Llama's queries and keys."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    kind = next((kind for kind in heads if kind in name), None)
    if architecture != "llama" or kind is None:
        return weight.numpy()
    return weight.unflatten(0, (heads[kind], 2, -1)).transpose(1, 2).flatten(0, 2).contiguous().numpy()


def write_file(file, architecture, model, tokenizer, cut):
    """Write a GGUF file as llama.cpp's converter does, with text split as `cut` says."""
    config = model.config
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_context_length(256)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(5e5)
    writer.add_layer_norm_rms_eps(1e-5)
    if architecture == "llama":
        writer.add_rope_dimension_count(8)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(cut)
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    special = set(tokenizer.all_special_tokens) | {"<|im_start|>"}
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(0)
    writer.add_bos_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)
    for full_name, weight in model.state_dict().items():
        name = full_name
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for mine, theirs in NAMES.items():
            name = name.replace(mine, theirs)
        writer.add_tensor(name, as_stored(full_name, weight, architecture, config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def tokenizer_with(chat_model, cut):
    tokenizer = AutoTokenizer.from_pretrained(chat_model)
    tokenizer.backend_tokenizer.pre_tokenizer = CUTS[cut]
    return tokenizer


@pytest.fixture(scope="module")
def model_and_file(chat_model, tmp_path_factory):
    """A random Qwen2 in the format of Qwen2.5's files, with a sub-word tokenizer that splits text like Qwen2's."""
    tokenizer = tokenizer_with(chat_model, "qwen2")
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), tie_word_embeddings=False, **SIZES))
    file = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return model, tokenizer, write_file(file, "qwen2", model, tokenizer, "qwen2")


@pytest.mark.parametrize(
    "architecture,cut,kind,config,more",
    [
        ("qwen2", "qwen2", Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True}),
        ("qwen3", "qwen2", Qwen3ForCausalLM, Qwen3Config, {"tie_word_embeddings": False, "head_dim": 128}),
        ("llama", "smollm", LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True}),
    ],
)
def test_three_families_compute_what_their_source_does(architecture, cut, kind, config, more, chat_model, tmp_path):
    """Logits and tokens are the source's, with random biases and norms, RoPE's base, tied heads, and text splitting."""
    tokenizer = tokenizer_with(chat_model, cut)
    torch.manual_seed(1)
    model = kind(config(vocab_size=len(tokenizer), **SIZES | more))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    convert(write_file(tmp_path / "tiny.gguf", architecture, model, tokenizer, cut), tmp_path / "model")
    mine, own = load_model(grpo.Args(model=str(tmp_path / "model")))
    text = "In 1998 he  buys 1234 apples (12.5 %), doesn't he?\n\n"
    ids = tokenizer(text)["input_ids"]
    assert own(text, add_special_tokens=False)["input_ids"] == ids and own.decode(ids) == text
    ids = torch.tensor([(ids * 9)[:200]])  # long enough for RoPE's base to matter
    with torch.no_grad():
        logits, expected = mine(ids).logits, model(ids).logits
    torch.testing.assert_close(logits, expected, rtol=0, atol=2e-5)
    assert expected.std() > 0.1 and all(parameter.dtype == torch.float32 for parameter in mine.parameters())
    assert not hasattr(mine.config, "quantization_config") and eos_ids(mine, own) == [tokenizer.eos_token_id]


def test_the_folder_has_the_model_of_the_file(model_and_file, tmp_path):
    model, tokenizer, file = model_and_file
    convert(file, tmp_path / "model")
    mine, own = load_model(grpo.Args(model=str(tmp_path / "model")))
    ids = torch.arange(len(tokenizer))[None, :200]
    torch.testing.assert_close(mine(ids).logits, model(ids).logits, rtol=0, atol=1e-6)
    for text in ("He buys 14 apples,  and  then 3.\n\nHow many?", "\\boxed{-1.5}", "<|im_start|>user\né<|im_end|>"):
        ids = tokenizer(text)["input_ids"]
        assert own(text)["input_ids"] == [0, *ids] and own.decode(ids) == text  # the file asks for a BOS
        assert own(text, add_special_tokens=False)["input_ids"] == ids
    assert own.chat_template == CHAT_TEMPLATE
    assert (own.eos_token, own.pad_token_id) == ("<|im_end|>", 0) and eos_ids(mine, own) == [tokenizer.eos_token_id]


def test_mistakes(model_and_file, tmp_path, capsys):
    file, folder = model_and_file[2], tmp_path / "model"
    other = tmp_path / "other.gguf"
    other.write_bytes(file.read_bytes().replace(b"qwen2", b"qwen9"))
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:5000])
    text = tmp_path / "text.gguf"
    text.write_text("no model")
    for given, words in (
        (other, "other.gguf (qwen9) cannot be read by transformers"),
        (cut, "cut.gguf is incomplete or corrupt"),
        (text, "text.gguf is not a GGUF file."),
        (tmp_path / "none.gguf", "none.gguf cannot be read: No such file"),
    ):
        with pytest.raises(SystemExit):
            convert(given, folder)
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1
    assert not folder.exists()
    with pytest.raises(SystemExit):
        convert(file, tmp_path)
    assert "exists; nothing is overwritten" in capsys.readouterr().err


def test_tokens_of_the_file_must_have_the_same_ids(chat_model, capsys):
    tokenizer = AutoTokenizer.from_pretrained(chat_model)
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    given = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "new"}
    check_tokenizer(Path("model.gguf"), given, tokenizer)
    assert "note: the pre-tokenizer 'new' is unknown" in capsys.readouterr().out
    tokens[5], tokens[6] = tokens[6], tokens[5]
    with pytest.raises(SystemExit):
        check_tokenizer(Path("model.gguf"), given, tokenizer)
    assert "token 5 is" in capsys.readouterr().err

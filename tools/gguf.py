"""Convert a GGUF file to a model folder for transformers, vLLM and these scripts: fp32 safetensors and a tokenizer.

    python -m tools.gguf FILE.gguf FOLDER

transformers reads the weights and the tokenizer, and this file checks the result. A quantized file has less precise
weights, so results with them are not the official model's.
"""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

from common.cli import fail, first_line, say

import torch
from gguf import GGUFReader
from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX
from transformers.utils import logging

logging.disable_progress_bar()
logging.set_verbosity_error()

MAGIC = b"GGUF"  # the first bytes of every file
# How text is split before byte pairs are merged, by the name in the file, which transformers does not read.
CUTS: dict[str, PreTokenizer] = {
    "default": ByteLevel(add_prefix_space=False),
    "gpt-2": ByteLevel(add_prefix_space=False),
    "smollm": Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]),
    "qwen2": Sequence(
        [Split(Regex(PRETOKENIZE_REGEX), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)],
    ),
}
PROBE = "He  buys 1234 (12.5 %)\n\n of 'them', doesn't he?"
NORMAL = 1  # the type of a token that is neither special nor added


def metadata(file: Path) -> dict[str, Any]:
    """The fields of a file about its tokenizer and architecture."""
    try:
        if file.open("rb").read(4) != MAGIC:
            fail(f"{file} is not a GGUF file.")
    except OSError as error:
        fail(f"{file} cannot be read: {error.strerror}.")
    try:
        fields = GGUFReader(file).fields
        wanted = re.compile(
            r"general\.architecture|tokenizer\.(chat_template|ggml\.(model|pre|tokens|token_type|add_bos_token|\w+_token_id))"
        )
        return {name: field.contents() for name, field in fields.items() if wanted.fullmatch(name)}
    except Exception as error:  # the file is cut, for example
        fail(f"{file} is incomplete or corrupt: {first_line(error)}")


def read(file: Path) -> tuple[Any, Any]:
    """The model of a file, in fp32 and without its quantization config, and its tokenizer."""
    given = metadata(file)
    where = {"gguf_file": file.name, "local_files_only": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
        quantized = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **where)
    except Exception as error:  # an architecture, a tokenizer or a type of weights that transformers does not know
        fail(f"{file} ({given['general.architecture']}) cannot be read by transformers: {first_line(error)}")
    check_tokenizer(file, given, tokenizer)
    # A quantized model cannot be saved, so the weights are copied to a new one.
    config = quantized.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(quantized)(config)
    model.load_state_dict(quantized.state_dict())
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return model, tokenizer


def check_tokenizer(file: Path, given: dict[str, Any], tokenizer: Any) -> None:
    """Take the template and the special tokens from the file; end the program if tokens have other ids."""
    tokens, kinds = given["tokenizer.ggml.tokens"], given.get("tokenizer.ggml.token_type")
    own = tokenizer.convert_ids_to_tokens(range(len(tokens)))
    # Special and added tokens may be spelled differently.
    for i, (token, mine) in enumerate(zip(tokens, own, strict=True)):
        if token != mine and (kinds is None or kinds[i] == NORMAL):
            fail(f"{file}: token {i} is {token!r} in the file, but {mine!r} in the tokenizer that transformers makes.")
    if given["tokenizer.ggml.model"] == "gpt2":  # pairs of bytes
        cut = given.get("tokenizer.ggml.pre", "default")
        if cut in CUTS:
            tokenizer.backend_tokenizer.pre_tokenizer = CUTS[cut]
        else:
            say(f"note: the pre-tokenizer {cut!r} is unknown: transformers' own for this model is used.")
    tokenizer.chat_template = given.get("tokenizer.chat_template")
    for kind, name in (("bos", "bos_token"), ("eos", "eos_token"), ("padding", "pad_token"), ("unknown", "unk_token")):
        number = given.get(f"tokenizer.ggml.{kind}_token_id")
        if number is not None:
            setattr(tokenizer, name, own[number])
    # Gemma and Llama need it. Without the field, SentencePiece's default applies.
    if given.get("tokenizer.ggml.add_bos_token", given["tokenizer.ggml.model"] == "llama"):
        bos = (tokenizer.bos_token, tokenizer.bos_token_id)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{bos[0]} $A", special_tokens=[bos])


def must_be_new(folder: Path) -> None:
    if folder.exists():
        fail(f"{folder} exists; nothing is overwritten: choose another folder.")


def convert(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file to a new folder, or end the program with one sentence."""
    must_be_new(folder)
    model, tokenizer = read(file)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    again = AutoTokenizer.from_pretrained(partial, local_files_only=True)
    if again(PROBE)["input_ids"] != tokenizer(PROBE)["input_ids"]:
        fail(f"{file}: transformers reads the tokenizer differently after saving it, so it cannot be converted.")
    partial.rename(folder)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        fail("pass the file and the folder to write: python -m tools.gguf FILE.gguf FOLDER")
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
    say(sys.argv[2])

#!/usr/bin/env python3
"""Writes a small checkpoint in Hugging Face's format, to try docs/finetune.md on two CPU cores: a Llama of 1M random
parameters, a byte-level tokenizer of 512 tokens with the special tokens of ChatML, and a chat template for them.

small_checkpoint.py FOLDER TEXT...    TEXT: files to train the vocabulary on; needs torch, transformers, tokenizers
"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def tokenizer_of(texts):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.decoder = decoders.ByteLevel()
    t.train(texts, trainers.BpeTrainer(vocab_size=512, special_tokens=SPECIAL, show_progress=False,
                                       initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    fast = PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<|im_start|>", eos_token="<|im_end|>")
    fast.chat_template = TEMPLATE
    return fast


def main():
    folder, *texts = sys.argv[1:]
    if not texts:
        sys.exit(__doc__)
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=512, hidden_size=128, intermediate_size=384, num_hidden_layers=5,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
                         tie_word_embeddings=True, bos_token_id=1, eos_token_id=2)
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer_of(texts).save_pretrained(folder)
    print(f"{folder}: {model.num_parameters():,} parameters")


main()

#!/usr/bin/env python3
"""Prints the numbers that tests/model/gated_delta_net_test.cpp expects, from Hugging Face's transformers (f32, CPU).

The layer is Qwen3.5's gated delta net; weights and inputs are formulas, so that both sides make them. Printed are
outputs of some tokens, and the product of every gradient with a fixed vector, for the loss sum(output * cotangent).
"""

import math

import torch
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

WIDTH, KEY_HEADS, VALUE_HEADS, KEY_WIDTH, VALUE_WIDTH, KERNEL, TOKENS = 24, 2, 4, 8, 16, 4, 150


def values(site, shape, scale=1.0, offset=0.0):
    n = math.prod(shape)
    return torch.tensor([offset + scale * math.sin(0.7 * (i + 1) + site + 0.013 * (i % 91) ** 2) for i in range(n)],
                        dtype=torch.float32).reshape(shape)


def main():
    net = Qwen3_5GatedDeltaNet(
        Qwen3_5TextConfig(hidden_size=WIDTH, linear_num_key_heads=KEY_HEADS, linear_num_value_heads=VALUE_HEADS,
                          linear_key_head_dim=KEY_WIDTH, linear_value_head_dim=VALUE_WIDTH,
                          linear_conv_kernel_dim=KERNEL, rms_norm_eps=1e-6, num_hidden_layers=4), 0)
    weights = [("in_proj_qkv.weight", 0.3, 0), ("conv1d.weight", 0.5, 0), ("in_proj_a.weight", 0.3, 0),
               ("in_proj_b.weight", 0.3, 0), ("A_log", 0.5, 0), ("dt_bias", 1.0, -2.0), ("in_proj_z.weight", 0.3, 0),
               ("norm.weight", 0.2, 1.0), ("out_proj.weight", 0.2, 0)]
    parameters = dict(net.named_parameters())
    assert set(parameters) == {name for name, _, _ in weights}
    for site, (name, scale, offset) in enumerate(weights):
        parameters[name].data = values(site, parameters[name].shape, scale, offset)
    x = values(20, (1, TOKENS, WIDTH)).requires_grad_()
    y = net(x)
    (y * values(21, y.shape)).sum().backward()
    for token in (0, 1, 63, 64, 149):
        print(f"token {token}:", ", ".join(f"{v:.8g}" for v in y[0, token, :4].tolist()))
    for name, gradient in [("x", x.grad)] + [(name, parameters[name].grad) for name, _, _ in weights]:
        product = (gradient.double().flatten() * values(30, gradient.shape).double().flatten()).sum().item()
        print(f"{name}: {product:.8g} of {gradient.double().norm().item():.8g}")


main()

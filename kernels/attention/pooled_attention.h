#pragma once
// Attention over the pairs of a pattern and over its pools (Pattern::pools): a call for each size and one for the
// pairs, merged by their log-sum-exps. Together they are one softmax over tokens and means, the compressed branch of
// NSA (Yuan et al. 2025, section 3.3.1, there with learned pooling and gates), and exact for it, forward and backward.
// Without pools it is the call of the pairs alone.

#include "kernels/attention/attention.h"

namespace ring {

// As attention_kernel, with whole documents, the same spans of queries and keys, and no carry. lse is that of tokens
// and means. Error: with dropout.
void pooled_attention(Attention, const ExecContext&);

// As attention_backward_kernel, likewise. Gradients of means go to their tokens in f32.
void pooled_attention_backward(AttentionBackward, const ExecContext&);

}  // namespace ring

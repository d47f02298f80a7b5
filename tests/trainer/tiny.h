#pragma once
// A model of two layers for tests of a few steps: two micro-batches, grouped heads, and every kernel of a Llama.

#include "engine/config.h"

namespace ring::test {

inline Config tiny_config() {
  Config c;
  c.run.threads = 2;
  c.run.device = DeviceChoice::cpu;
  ModelConfig& m = c.model;
  m.vocab_size = 300;
  m.context = 32;
  m.layers = 2;
  m.width = 64;
  m.heads = 4;
  m.kv_heads = 2;
  m.mlp = Mlp::swiglu;
  m.mlp_width = 96;
  m.norm = NormKind::rms;
  m.positions = Positions::rope;
  m.tied_embeddings = false;
  m.dropout = 0;
  c.train.batch_size = 8;
  c.train.micro_batch = 4;
  c.train.steps = 1000;
  return c;
}

}  // namespace ring::test

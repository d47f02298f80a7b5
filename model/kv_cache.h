#pragma once
// Keys and values of the tokens seen so far, for generation.

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "autograd/ops.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/seen_keys.h"
#include "model/kv_cache_type.h"

namespace ring {

struct LayerCache;

// New tokens of a cache's sequences: any number of tokens for each sequence if the sequences are empty, else one.
struct NewTokens {
  Run& run;
  const Var& x;  // the layer's input, [N,C]
  const Sequences& seqs;
  const std::vector<std::int32_t>& lengths;  // tokens of each sequence before the new ones

  // Returns the number of tokens of sequence b, including the new ones.
  std::int32_t end(std::size_t b) const { return lengths[b] + seqs.offsets[b + 1] - seqs.offsets[b]; }
};

// Arguments to make the cache of a variant.
struct CacheSetup {
  std::int64_t batch, capacity;  // sequences; maximum tokens of each
  std::int64_t heads, kv_heads, head_dim;
  std::int64_t token_rows;             // rows of each sequence in the layer's cache that hold tokens
  const Pattern& pattern;              // the layer's pattern after any warm-up
  std::span<const LayerCache> before;  // caches of earlier layers
  const ExecContext& ctx;
};

// The part that a variant of attention (model/attention_variant.h) adds to a layer's cache.
class VariantCache {
 public:
  VariantCache() = default;
  virtual ~VariantCache() = default;
  VariantCache(const VariantCache&) = delete;
  VariantCache& operator=(const VariantCache&) = delete;

  // Returns how many rows of keys and values the part needs in each sequence, besides the rows of tokens. They come
  // after the rows of tokens. At most one variant of a layer may need such rows.
  virtual std::int64_t extra_rows() const { return 0; }
  // Returns true if the part reads or writes keys or values, which must then have the activation type.
  virtual bool uses_keys() const { return true; }
  // Called after the keys and values of new tokens were stored. q [N,Hq,D]: their queries.
  virtual void append(const LayerCache&, const NewTokens&, const Tensor& /*q*/) {}
  // Called before the newest token of each sequence attends, after append().
  virtual void prepare(const LayerCache&, const Pattern&, float /*scale*/, const NewTokens&) {}
  // Appends the keys that token `token` of sequence b sees in this KV head. Returns false if the pattern decides. At
  // most one variant of a layer may return true.
  virtual bool add_keys(std::size_t /*b*/, std::int32_t /*kv_head*/, std::int32_t /*token*/,
                        std::vector<KeyRun>&) const {
    return false;
  }
  // Appends the extra rows that this token sees.
  virtual void add_rows(std::int32_t /*token*/, std::vector<CacheRows>&) const {}
  // Computes the output, args.out. Returns false if the layer should run attention_decode_kernel instead. At most one
  // variant of a layer may return true.
  virtual bool decode(const AttentionDecode&, const NewTokens&) const { return false; }
};

// The cache of one layer: keys and values [batch,rows,kv_heads,head_dim]. Token t is in row t. If there are fewer
// rows than tokens, the rows after the sinks are a ring buffer of the newest tokens. Extra rows of attention variants
// follow the rows of tokens. With KvCacheType::fp8, keys and values are u8 with e4m3 codes, and the scales are u8
// [batch,rows,kv_heads]; otherwise the scales are undefined.
struct LayerCache {
  Tensor keys, values, key_scales{}, value_scales{};
  std::int64_t sinks = 0;
  std::int64_t token_rows = 0;  // rows of each sequence that hold tokens
  std::vector<std::shared_ptr<VariantCache>> variants{};
  // Used by gated delta nets instead of keys and values, in f32: the state [batch,value_heads,key_width,value_width]
  // after the newest token, and the last inputs of the convolution [batch,conv_kernel-1,channels].
  Tensor state{}, inputs{};

  std::int64_t row_of(std::int64_t token) const {
    return token < token_rows ? token : sinks + (token - sinks) % (token_rows - sinks);
  }
  // Appends the new tokens (q [N,Hq,D], k and v [N,Hk,D], heads adjacent), rounded to the type of the cache. Skips keys
  // that the ring would overwrite.
  void append(const NewTokens&, const Tensor& q, const Tensor& k, const Tensor& v) const;
  // Computes args.out from args.q: attention of the newest token of each sequence, token lengths[b], which append() has
  // stored. Sets the cache's part of the arguments.
  void decode(const Pattern&, AttentionDecode args, const NewTokens&) const;
  // Sets `rows` and `starts` of the kernel call to the cache rows that token tokens[b] of each sequence attends over.
  void set_key_rows(const Pattern&, const std::vector<std::int32_t>& tokens, AttentionDecode&) const;
};

// Made by Model::make_cache().
struct KvCache {
  // Throws Error if a sequence would exceed the capacity.
  void check_room(const Sequences&) const;

  std::vector<LayerCache> layers;
  std::vector<std::int32_t> lengths;  // tokens seen, per sequence; the model advances them
  std::int64_t capacity = 0;          // maximum tokens per sequence
};

}  // namespace ring

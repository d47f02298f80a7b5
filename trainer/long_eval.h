#pragma once
// How well a model uses a long context: its loss by position, and whether it finds a key again that was named far back
// (the passkey task of Mohtashami and Jaggi 2023, "Landmark Attention", section 4.2).

#include <cstdint>
#include <string>
#include <vector>

#include "data/loader.h"
#include "data/tokenizer.h"
#include "model/decoder.h"

namespace ring {

// The tokens that were predicted at positions [first, end) of their windows: with first to end - 1 tokens before the
// one that predicts.
struct PositionBucket {
  std::int64_t first = 0, end = 0;
  double sum = 0;  // of their losses, in nats
  std::int64_t tokens = 0;
  double loss() const { return sum / static_cast<double>(tokens); }
};

// Buckets [0, 1), [1, 2), [2, 4), [4, 8), .. up to the windows' length; those without tokens are left out. `set`: of
// one rank, without packed documents.
std::vector<PositionBucket> losses_by_position(const Decoder&, const ExecContext&, const ValidationSet& set);

struct PasskeyPrompt {
  std::string key;
  std::vector<std::int32_t> tokens;                  // the answer included
  std::int64_t answer = 0;                           // how many of the last tokens it is
  std::int64_t filler_before = 0, filler_after = 0;  // sentences on both sides of the one with the key
};

// Prompts that name a random key of five digits (letters, where the tokenizer has no digits) in the midst of filler,
// and end with the question for it and the answer. The same (seed, length, depth, trial) gives the same prompt.
class PasskeyTask {
 public:
  // Error: the tokenizer can write neither digits nor letters.
  PasskeyTask(const Tokenizer&, std::uint64_t seed);
  // Has as many tokens as fit, at most `length`. depth: the share of the filler that comes before the key, in [0, 1].
  // Error: `length` is too small.
  PasskeyPrompt prompt(std::int64_t length, double depth, std::int64_t trial) const;
  std::int64_t bare_tokens() const;                         // about: of a prompt without filler
  bool writes_everything() const { return unknown_ == 0; }  // the tokenizer has every character of the prompts

 private:
  std::vector<std::int32_t> encode(const std::string& text) const;  // in the midst of a prompt
  std::string key(std::int64_t length, double depth, std::int64_t trial) const;
  PasskeyPrompt bare(const std::string& key, std::vector<std::int32_t>& needle) const;

  const Tokenizer& tokenizer_;
  std::uint64_t seed_;
  std::string alphabet_;
  std::int64_t unknown_ = 0;
  std::vector<std::int32_t> intro_;
  std::vector<std::vector<std::int32_t>> filler_;
};

struct PasskeyCell {
  std::int64_t length = 0, trials = 0;
  double depth = 0;
  std::int64_t exact = 0;      // trials whose likeliest continuation is the key
  double log_probability = 0;  // mean over the tokens of the keys, in nats, given those before
};
PasskeyCell passkey_cell(const Decoder&, const ExecContext&, const PasskeyTask&, std::int64_t length, double depth,
                         std::int64_t trials);

}  // namespace ring

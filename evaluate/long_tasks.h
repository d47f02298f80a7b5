#pragma once
// Synthetic prompts of any length with a known answer, made from a seed: does a model find what was said far back?
//
//   passkey    a random number is stated in the middle of filler (Mohtashami and Jaggi 2023, "Landmark Attention",
//              section 4.2)
//   needles    several names have a number each, and the prompt asks for the number of one name
//   variables  one variable has a number and a chain of variables copies it; the prompt asks for the last variable of
//              the chain, beside a second chain
//   words      a list of words, one of which occurs more often than any other
//
// The last three follow RULER (Hsieh et al. 2024, sections 3.1 to 3.3), with one answer of a few tokens, so that a
// single forward pass shows whether a model would write it.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/model.h"
#include "text/tokenizer.h"

namespace ring {

enum class LongKind : std::uint8_t { passkey, needles, variables, words };
std::vector<std::string> long_kinds();
const char* name_of(LongKind);
LongKind parse_long_kind(const std::string& name);  // throws Error, which lists the valid names

struct LongPrompt {
  std::string answer;                                // the answer, without its leading space
  std::vector<std::int32_t> tokens;                  // all tokens, including the answer
  std::int64_t answer_tokens = 0;                    // number of answer tokens, at the end of `tokens`
  std::int64_t filler_before = 0, filler_after = 0;  // filler sentences before and after the sentence with the answer
};

// Makes prompts. The same (kind, seed, length, depth, trial) always gives the same prompt. Numbers have five digits, or
// five letters if the tokenizer has no digits.
class LongTask {
 public:
  // Throws Error if the tokenizer has neither digits nor letters.
  LongTask(LongKind, const Tokenizer&, std::uint64_t seed);
  // Returns a prompt with as many tokens as fit into `length`. depth: share of the filler that comes before the
  // sentence with the answer, in [0, 1]; ignored for `words`. Throws Error if `length` is too small.
  LongPrompt prompt(std::int64_t length, double depth, std::int64_t trial) const;
  LongKind kind() const { return kind_; }
  std::int64_t tokens_without_filler() const;               // approximate length of a prompt without filler
  bool writes_everything() const { return unknown_ == 0; }  // true if the tokenizer has every character of the prompts

 private:
  // A prompt as text: sentences with their depths. The sentence with the answer comes first.
  struct Story {
    std::vector<std::pair<double, std::string>> sentences;
    std::string question, answer;
  };
  class Dice;
  Story make_story(double depth, Dice&) const;
  Story make_needles(double depth, Dice&) const;
  Story make_variables(double depth, Dice&) const;
  std::string draw_number(Dice&) const;
  std::vector<std::int32_t> encode(const std::string& text) const;  // encodes text as if in the middle of a prompt
  // Returns the indices of as many filler sentences or words as fit into `room_tokens` tokens.
  std::vector<std::size_t> choose_filler(std::size_t room_tokens, std::int64_t trial, const std::string& answer,
                                         Dice&) const;

  LongKind kind_;
  const Tokenizer& tokenizer_;
  std::uint64_t seed_;
  std::string alphabet_;
  std::int64_t unknown_ = 0;
  std::vector<std::int32_t> intro_;
  std::vector<std::vector<std::int32_t>> filler_;
};

struct LongCell {
  std::int64_t length = 0, trials = 0;
  double depth = 0;
  std::int64_t exact = 0;      // number of trials in which the most likely continuation is the answer
  double log_probability = 0;  // mean over the answers' tokens, in nats; each depends on the tokens before it
};
// Measures one length and depth. rows: number of prompts computed at a time.
LongCell long_cell(const Model&, const ExecContext&, const LongTask&, std::int64_t length, double depth,
                   std::int64_t trials, std::int64_t rows = 1);

}  // namespace ring

#pragma once
// Prompts of any length whose answer is known, made from a seed: does a model find what was said far back?
//
//   passkey    a random number is named in the midst of filler (Mohtashami and Jaggi 2023, "Landmark Attention",
//              section 4.2)
//   needles    several names have a number each, and one of them is asked for
//   variables  a variable has a number, others take its value from each other; the last of them is asked for, beside
//              another such chain
//   words      a list of words of which one occurs more often than any other
//
// The last three are in the manner of RULER (Hsieh et al. 2024, sections 3.1 to 3.3), with one answer of a few tokens,
// so that a single pass tells whether a model would write it.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/model.h"
#include "text/tokenizer.h"

namespace ring {

enum class LongKind : std::uint8_t { passkey, needles, variables, words };
std::vector<std::string> long_kinds();  // their names
const char* name_of(LongKind);
LongKind parse_long_kind(const std::string& name);  // Error lists the names

struct LongPrompt {
  std::string key;                                   // the answer, without the blank in front of it
  std::vector<std::int32_t> tokens;                  // the answer included
  std::int64_t answer = 0;                           // how many of the last tokens it is
  std::int64_t filler_before = 0, filler_after = 0;  // sentences on both sides of the one with the answer
};

// The same (kind, seed, length, depth, trial) gives the same prompt. Numbers have five digits (letters, where the
// tokenizer has no digits).
class LongTask {
 public:
  // Error: the tokenizer can write neither digits nor letters.
  LongTask(LongKind, const Tokenizer&, std::uint64_t seed);
  // Has as many tokens as fit, at most `length`. depth: the share of the filler that comes before what names the
  // answer, in [0, 1]; `words` has none. Error: `length` is too small.
  LongPrompt prompt(std::int64_t length, double depth, std::int64_t trial) const;
  LongKind kind() const { return kind_; }
  std::int64_t bare_tokens() const;                         // about: of a prompt without filler
  bool writes_everything() const { return unknown_ == 0; }  // the tokenizer has every character of the prompts

 private:
  // A prompt as text: sentences with their depths, the one with the answer first.
  struct Story {
    std::vector<std::pair<double, std::string>> needles;
    std::string question, answer;
  };
  class Dice;  // the random numbers of a prompt
  Story story(double depth, Dice&) const;
  Story needles(double depth, Dice&) const;
  Story variables(double depth, Dice&) const;
  std::string number(Dice&) const;
  std::vector<std::int32_t> encode(const std::string& text) const;  // in the midst of a prompt
  // As many sentences or words as fit into so many tokens.
  std::vector<std::size_t> filler_for(std::size_t room, std::int64_t trial, const std::string& answer, Dice&) const;

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
  std::int64_t exact = 0;      // trials whose likeliest continuation is the answer
  double log_probability = 0;  // mean over the tokens of the answers, in nats, given those before
};
// rows: prompts to compute at a time.
LongCell long_cell(const Model&, const ExecContext&, const LongTask&, std::int64_t length, double depth,
                   std::int64_t trials, std::int64_t rows = 1);

}  // namespace ring

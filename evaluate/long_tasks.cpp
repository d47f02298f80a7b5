#include "evaluate/long_tasks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "comm/mesh/mesh.h"
#include "core/joined.h"
#include "core/philox.h"
#include "evaluate/score.h"
#include "parallel/plan.h"

namespace ring {
namespace {

constexpr std::array kKinds = {"passkey", "needles", "variables", "words"};
constexpr const char* kPasskeyIntro =
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. I will quiz you about "
    "the important information there.\n";
constexpr const char* kIntro = "Read the text below with care. A question about it follows at its end.\n";
constexpr const char* kFiller[] = {" The grass is green.", " The sky is blue.", " The sun is yellow.", " Here we go.",
                                   " There and back again."};
constexpr std::array kWords = {"apple",  "bridge", "candle", "desert", "engine", "forest", "garden", "hammer",
                               "island", "jacket", "kettle", "ladder", "mirror", "needle", "orange", "pencil"};
constexpr std::size_t kNumberLength = 5, kNeedles = 4, kHops = 3;
constexpr std::size_t kCommonEvery = 4;  // every fourth word is the answer; the others are used in rotation
constexpr std::size_t kFewestWords = 5;  // minimum words of a list in which the answer occurs twice

std::int64_t unknown_in(const Tokenizer& tokenizer, const std::string& text) {
  EncodeReport report;
  tokenizer.encode(text, &report);
  return report.unknown;
}

void append(std::vector<std::int32_t>& to, const std::vector<std::int32_t>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

std::string value_of(const std::string& name, const std::string& value) {
  return "\nThe number of " + name + " is " + value + ".\n";
}

}  // namespace

std::vector<std::string> long_kinds() { return {kKinds.begin(), kKinds.end()}; }

const char* name_of(LongKind kind) { return kKinds[static_cast<std::size_t>(kind)]; }

LongKind parse_long_kind(const std::string& name) {
  const auto found = std::ranges::find(kKinds, name);
  if (found == kKinds.end()) fail("--long-tasks: ", name, " is not one of ", joined(long_kinds(), ", "));
  return static_cast<LongKind>(found - kKinds.begin());
}

// Draws random numbers. Seed, kind, length, depth and trial determine their sequence.
class LongTask::Dice {
 public:
  Dice(const LongTask& task, std::int64_t length, double depth, std::int64_t trial)
      : site_{task.seed_, static_cast<std::uint32_t>(trial),
              site_of(str(name_of(task.kind_), " ", length, " ", depth))} {}
  std::size_t below(std::size_t n) { return random_bits(site_, next_++) % n; }
  double share() { return static_cast<double>(random_bits(site_, next_++)) * 0x1p-32; }
  // Returns `count` distinct words in random order.
  std::vector<std::string> words(std::size_t count) {
    std::vector<std::string> all(kWords.begin(), kWords.end());
    for (std::size_t i = 0; i < count; ++i) std::swap(all[i], all[i + below(all.size() - i)]);
    all.resize(count);
    return all;
  }

 private:
  RandomSite site_;
  std::uint64_t next_ = 0;
};

LongTask::LongTask(LongKind kind, const Tokenizer& tokenizer, std::uint64_t seed)
    : kind_(kind), tokenizer_(tokenizer), seed_(seed), alphabet_("0123456789"), intro_(tokenizer.before_text()) {
  const char* intro = kind == LongKind::passkey ? kPasskeyIntro : kIntro;
  append(intro_, tokenizer.encode(intro));
  if (unknown_in(tokenizer, alphabet_) > 0) alphabet_ = "abcdefghijklmnopqrstuvwxyz";
  if (unknown_in(tokenizer, alphabet_) > 0)
    fail(name_of(kind), " prompts: the tokenizer (", tokenizer.kind(), ") can write neither 0 to 9 nor a to z");
  if (kind == LongKind::words) {
    for (const char* word : kWords) filler_.push_back(encode(str(" ", word)));
  } else {
    for (const char* sentence : kFiller) filler_.push_back(encode(sentence));
  }
  Dice dice(*this, 0, 0, 0);
  const Story s = make_story(0, dice);
  unknown_ = unknown_in(tokenizer, str(intro, s.question, alphabet_));
  for (const auto& [depth, sentence] : s.sentences) unknown_ += unknown_in(tokenizer, sentence);
  for (const char* word : kWords) unknown_ += kind == LongKind::words ? unknown_in(tokenizer, word) : 0;
  for (const char* sentence : kFiller) unknown_ += kind == LongKind::words ? 0 : unknown_in(tokenizer, sentence);
}

std::vector<std::int32_t> LongTask::encode(const std::string& text) const {
  std::vector<std::int32_t> ids;
  tokenizer_.encoder()->encode_continuation(text, ids);
  return ids;
}

std::string LongTask::draw_number(Dice& dice) const {
  std::string number;
  for (std::size_t i = 0; i < kNumberLength; ++i) number += alphabet_[dice.below(alphabet_.size())];
  return number;
}

LongTask::Story LongTask::make_needles(double depth, Dice& dice) const {
  Story s;
  const std::vector<std::string> names = dice.words(kNeedles);
  s.answer = draw_number(dice);
  s.sentences.emplace_back(depth, value_of(names[0], s.answer));
  for (std::size_t i = 1; i < kNeedles; ++i)
    s.sentences.emplace_back(dice.share(), value_of(names[i], draw_number(dice)));
  s.question = "\nWhat is the number of " + names[0] + "? The number of " + names[0] + " is";
  return s;
}

// Makes two chains of variables. The chain that the prompt asks for begins at `depth`, and its other links are spread
// from there to the end. The other chain begins at a random depth.
LongTask::Story LongTask::make_variables(double depth, Dice& dice) const {
  Story s;
  const std::vector<std::string> names = dice.words(2 * (kHops + 1));
  const auto link = [&](std::size_t i) {
    return "\nThe number of " + names[i] + " is that of " + names[i - 1] + ".\n";
  };
  s.answer = draw_number(dice);
  s.sentences.emplace_back(depth, value_of(names[0], s.answer));
  for (std::size_t i = 1; i <= kHops; ++i)
    s.sentences.emplace_back(depth + (1 - depth) * static_cast<double>(i) / (kHops + 1), link(i));
  const double other = dice.share();
  s.sentences.emplace_back(other, value_of(names[kHops + 1], draw_number(dice)));
  for (std::size_t i = 1; i <= kHops; ++i)
    s.sentences.emplace_back(other + (1 - other) * static_cast<double>(i) / (kHops + 1), link(kHops + 1 + i));
  s.question = "\nWhat is the number of " + names[kHops] + "? The number of " + names[kHops] + " is";
  return s;
}

LongTask::Story LongTask::make_story(double depth, Dice& dice) const {
  if (kind_ == LongKind::needles) return make_needles(depth, dice);
  if (kind_ == LongKind::variables) return make_variables(depth, dice);
  Story s;
  if (kind_ == LongKind::words) {
    s.answer = kWords[dice.below(kWords.size())];
    s.question = "\nWhich of these words occurs most often? The word is";
    return s;
  }
  s.answer = draw_number(dice);
  s.sentences = {{depth, "\nThe pass key is " + s.answer + ". Remember it. " + s.answer + " is the pass key.\n"}};
  s.question = "\nWhat is the pass key? The pass key is";
  return s;
}

std::int64_t LongTask::tokens_without_filler() const {
  Dice dice(*this, 0, 0, 0);
  const Story s = make_story(0, dice);
  std::size_t tokens = intro_.size() + encode(s.question + " " + s.answer).size();
  for (const auto& [depth, sentence] : s.sentences) tokens += encode(sentence).size();
  return static_cast<std::int64_t>(tokens);
}

std::vector<std::size_t> LongTask::choose_filler(std::size_t room, std::int64_t trial, const std::string& answer,
                                                 Dice& dice) const {
  std::vector<std::size_t> turns(filler_.size()), out;
  std::iota(turns.begin(), turns.end(), std::size_t{0});
  std::size_t start = static_cast<std::size_t>(trial), every = 0;
  if (kind_ == LongKind::words) {
    for (std::size_t i = 0; i + 1 < turns.size(); ++i) std::swap(turns[i], turns[i + dice.below(turns.size() - i)]);
    const auto common = std::ranges::find(turns, answer, [](std::size_t i) { return std::string(kWords[i]); });
    std::rotate(common, common + 1, turns.end());  // moves the answer to the end
    every = kCommonEvery, start = 0;
  }
  const std::size_t others = turns.size() - (every ? 1 : 0);
  for (std::size_t i = 0, other = start;; ++i) {
    const std::size_t next = every && i % every == 0 ? turns.back() : turns[other++ % others];
    if (filler_[next].empty() || filler_[next].size() > room) return out;
    out.push_back(next);
    room -= filler_[next].size();
  }
}

LongPrompt LongTask::prompt(std::int64_t length, double depth, std::int64_t trial) const {
  RING_CHECK(depth >= 0 && depth <= 1 && trial >= 0, "a prompt at depth ", depth, ", trial ", trial);
  Dice dice(*this, length, depth, trial);
  const Story s = make_story(depth, dice);
  LongPrompt p;
  p.answer = s.answer;
  const std::vector<std::int32_t> asked = encode(s.question), answered = encode(s.question + (" " + s.answer));
  p.answer_tokens = answered.end() - std::mismatch(asked.begin(), asked.end(), answered.begin(), answered.end()).second;
  std::size_t used = intro_.size() + answered.size();
  std::vector<std::vector<std::int32_t>> hidden;
  for (const auto& [at, sentence] : s.sentences) used += hidden.emplace_back(encode(sentence)).size();
  if (length < static_cast<std::int64_t>(used))
    fail("a ", name_of(kind_), " prompt of ", length, " tokens is too short: without any filler it needs ", used,
         " with this tokenizer. Give larger --lengths");
  const std::vector<std::size_t> sentences =
      choose_filler(static_cast<std::size_t>(length) - used, trial, s.answer, dice);
  if (kind_ == LongKind::words && sentences.size() < kFewestWords)
    fail("a 'words' prompt of ", length, " tokens is too short for ", kFewestWords, " words. Give larger --lengths");
  const auto place = [&](double at) { return std::llround(at * static_cast<double>(sentences.size())); };
  p.filler_before = place(depth);
  p.filler_after = static_cast<std::int64_t>(sentences.size()) - p.filler_before;
  p.tokens = intro_;
  for (std::size_t i = 0; i <= sentences.size(); ++i) {
    for (std::size_t n = 0; n < hidden.size(); ++n)
      if (static_cast<std::size_t>(place(s.sentences[n].first)) == i) append(p.tokens, hidden[n]);
    if (i < sentences.size()) append(p.tokens, filler_[sentences[i]]);
  }
  append(p.tokens, answered);
  return p;
}

LongCell long_cell(const Model& model, const ExecContext& ctx, const LongTask& task, std::int64_t length, double depth,
                   std::int64_t trials, std::int64_t rows) {
  LongCell cell{.length = length, .trials = trials, .depth = depth};
  std::vector<Request> requests;
  std::int64_t tokens = 0;
  for (std::int64_t t = 0; t < trials; ++t) {
    LongPrompt prompt = task.prompt(length, depth, t);
    tokens += prompt.answer_tokens;
    requests.push_back({std::move(prompt.tokens), prompt.answer_tokens});
  }
  const std::unique_ptr<Mesh> alone = mesh_of_one();
  for (const Score& s : score(model, ctx, requests, {.row = length, .rows = rows}, alone->host())) {
    cell.exact += s.greedy;
    cell.log_probability += s.log_probability;
  }
  cell.log_probability /= static_cast<double>(tokens);
  return cell;
}

}  // namespace ring

#include "trainer/long_eval.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "core/philox.h"
#include "kernels/cross_entropy.h"

namespace ring {
namespace {

constexpr const char* kIntro =
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. I will quiz you about "
    "the important information there.\n";
constexpr const char* kFiller[] = {" The grass is green.", " The sky is blue.", " The sun is yellow.", " Here we go.",
                                   " There and back again."};
constexpr const char* kQuestion = "\nWhat is the pass key? The pass key is";
constexpr std::size_t kKeyLength = 5;

std::string needle_text(const std::string& key) {
  return "\nThe pass key is " + key + ". Remember it. " + key + " is the pass key.\n";
}

std::int64_t unknown_in(const Tokenizer& tokenizer, const std::string& text) {
  EncodeReport report;
  tokenizer.encode(text, &report);
  return report.unknown;
}

void append(std::vector<std::int32_t>& to, const std::vector<std::int32_t>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

std::size_t bucket_of(std::int64_t position) { return std::bit_width(static_cast<std::uint64_t>(position)); }

// Natural logarithm of a token's probability.
double log_probability_of(std::span<const float> logits, std::int32_t token) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - top);
  return logits[static_cast<std::size_t>(token)] - top - std::log(sum);
}

struct Answer {
  bool exact = true;
  double sum = 0;  // of log-probabilities
};

// As long as the likeliest token is the right one, reading the answer is the same as writing it: one pass tells both.
Answer read_answer(const Decoder& model, const ExecContext& ctx, const PasskeyPrompt& prompt) {
  Run run{ctx};
  const auto n = static_cast<std::int64_t>(prompt.tokens.size()) - 1;
  const std::vector<std::int32_t> inputs(prompt.tokens.begin(), prompt.tokens.end() - 1);
  const Var h = model.hidden(run, from_host(inputs, ctx.stream), Sequences::uniform(1, n, ctx));
  const Tensor last = h.value.narrow(0, n - prompt.answer, prompt.answer);
  const std::vector<float> logits = to_host<float>(model.logits(run, last), ctx.stream);
  const std::size_t vocab = logits.size() / static_cast<std::size_t>(prompt.answer);
  Answer a;
  for (std::size_t i = 0; i < static_cast<std::size_t>(prompt.answer); ++i) {
    const std::span<const float> row = std::span(logits).subspan(i * vocab, vocab);
    for (const float x : row)
      if (!std::isfinite(x)) fail("the model's logits are not finite (", x, "): its weights are damaged");
    const std::int32_t token = prompt.tokens[static_cast<std::size_t>(n - prompt.answer) + 1 + i];
    a.exact = a.exact && std::max_element(row.begin(), row.end()) - row.begin() == token;
    a.sum += log_probability_of(row, token);
  }
  return a;
}

}  // namespace

std::vector<PositionBucket> losses_by_position(const Decoder& model, const ExecContext& ctx, const ValidationSet& set) {
  const LoaderOptions& options = set.options();
  RING_CHECK(options.world == 1 && !options.packing.documents, "losses by position: of whole windows on one rank only");
  std::vector<PositionBucket> buckets(bucket_of(options.context - 1) + 1);
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    buckets[i].first = i == 0 ? 0 : std::int64_t{1} << (i - 1);
    buckets[i].end = std::min(std::int64_t{1} << i, options.context);
  }
  const Sequences seqs = Sequences::uniform(options.rows, options.context, ctx);
  for (std::int64_t i = 0; i < set.batches(); ++i) {
    const Batch b = set.batch(i);
    Run run{ctx};
    LossHead head;
    head.targets = from_host(b.targets, ctx.stream);
    const LossOutput out = model.loss(run, from_host(b.inputs, ctx.stream), seqs, head);
    const std::vector<float> losses = to_host<float>(out.token_loss, ctx.stream);
    for (std::size_t t = 0; t < losses.size(); ++t) {
      if (b.targets[t] == kIgnoreTarget) continue;
      PositionBucket& bucket = buckets[bucket_of(static_cast<std::int64_t>(t) % options.context)];
      bucket.sum += losses[t];
      ++bucket.tokens;
    }
  }
  std::erase_if(buckets, [](const PositionBucket& b) { return b.tokens == 0; });
  return buckets;
}

std::vector<std::int32_t> PasskeyTask::encode(const std::string& text) const {
  std::vector<std::int32_t> ids;
  tokenizer_.encoder()->go_on(text, ids);
  return ids;
}

PasskeyTask::PasskeyTask(const Tokenizer& tokenizer, std::uint64_t seed)
    : tokenizer_(tokenizer), seed_(seed), alphabet_("0123456789"), intro_(tokenizer.before_text()) {
  const std::vector<std::int32_t> intro = tokenizer.encode(kIntro);
  intro_.insert(intro_.end(), intro.begin(), intro.end());
  if (unknown_in(tokenizer, alphabet_) > 0) alphabet_ = "abcdefghijklmnopqrstuvwxyz";
  if (unknown_in(tokenizer, alphabet_) > 0)
    fail("passkey prompts: the tokenizer (", tokenizer.kind(), ") can write neither 0 to 9 nor a to z");
  unknown_ = unknown_in(tokenizer, str(kIntro, kQuestion, needle_text(alphabet_)));
  for (const char* sentence : kFiller) {
    filler_.push_back(encode(sentence));
    unknown_ += unknown_in(tokenizer, sentence);
  }
}

std::string PasskeyTask::key(std::int64_t length, double depth, std::int64_t trial) const {
  const RandomSite site{seed_, static_cast<std::uint32_t>(trial), site_of(str("passkey ", length, " ", depth))};
  std::string key;
  for (std::size_t i = 0; i < kKeyLength; ++i) key += alphabet_[random_bits(site, i) % alphabet_.size()];
  return key;
}

// All but the filler; what names the key separately.
PasskeyPrompt PasskeyTask::bare(const std::string& key, std::vector<std::int32_t>& needle) const {
  PasskeyPrompt p;
  p.key = key;
  needle = encode(needle_text(key));
  const std::vector<std::int32_t> asked = encode(kQuestion), answered = encode(kQuestion + (" " + key));
  const auto differ = std::mismatch(asked.begin(), asked.end(), answered.begin(), answered.end());
  p.answer = answered.end() - differ.second;
  p.tokens = answered;
  return p;
}

std::int64_t PasskeyTask::bare_tokens() const {
  std::vector<std::int32_t> needle;
  const PasskeyPrompt p = bare(key(0, 0, 0), needle);
  return static_cast<std::int64_t>(intro_.size() + needle.size() + p.tokens.size());
}

PasskeyPrompt PasskeyTask::prompt(std::int64_t length, double depth, std::int64_t trial) const {
  RING_CHECK(depth >= 0 && depth <= 1 && trial >= 0, "a passkey at depth ", depth, ", trial ", trial);
  std::vector<std::int32_t> needle;
  PasskeyPrompt p = bare(key(length, depth, trial), needle);
  const std::size_t used = intro_.size() + needle.size() + p.tokens.size();
  if (length < static_cast<std::int64_t>(used))
    fail("a passkey prompt of ", length, " tokens: without any filler it takes ", used,
         " with this tokenizer; give larger --lengths");
  std::vector<std::size_t> sentences;
  std::size_t room = static_cast<std::size_t>(length) - used, next = static_cast<std::size_t>(trial) % filler_.size();
  for (; filler_[next].size() <= room && !filler_[next].empty(); next = (next + 1) % filler_.size()) {
    sentences.push_back(next);
    room -= filler_[next].size();
  }
  p.filler_before = std::llround(depth * static_cast<double>(sentences.size()));
  p.filler_after = static_cast<std::int64_t>(sentences.size()) - p.filler_before;
  std::vector<std::int32_t> all = intro_;
  for (std::size_t i = 0; i <= sentences.size(); ++i) {
    if (i == static_cast<std::size_t>(p.filler_before)) append(all, needle);
    if (i < sentences.size()) append(all, filler_[sentences[i]]);
  }
  append(all, p.tokens);
  p.tokens = std::move(all);
  return p;
}

PasskeyCell passkey_cell(const Decoder& model, const ExecContext& ctx, const PasskeyTask& task, std::int64_t length,
                         double depth, std::int64_t trials) {
  PasskeyCell cell{.length = length, .trials = trials, .depth = depth};
  std::int64_t tokens = 0;
  for (std::int64_t t = 0; t < trials; ++t) {
    const PasskeyPrompt prompt = task.prompt(length, depth, t);
    const Answer a = read_answer(model, ctx, prompt);
    cell.exact += a.exact;
    cell.log_probability += a.sum;
    tokens += prompt.answer;
  }
  cell.log_probability /= static_cast<double>(tokens);
  return cell;
}

}  // namespace ring

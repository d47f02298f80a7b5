#include "evaluate/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>

#include "core/philox.h"

namespace ring {
namespace {

// The ids that may be sampled, sorted from most to least likely, with their unnormalized probabilities.
struct Candidates {
  std::vector<std::int32_t> ids;
  std::vector<double> weights;
};

Candidates candidates_of(std::span<const float> logits, const Sampling& s) {
  Candidates c;
  c.ids.resize(logits.size());
  std::iota(c.ids.begin(), c.ids.end(), 0);
  // Ties are broken by id, so that the order is the same on all machines.
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const float la = logits[static_cast<std::size_t>(a)], lb = logits[static_cast<std::size_t>(b)];
    return la != lb ? la > lb : a < b;
  };
  std::size_t keep = c.ids.size();
  if (s.top_k > 0) keep = std::min(keep, static_cast<std::size_t>(s.top_k));
  std::partial_sort(c.ids.begin(), c.ids.begin() + static_cast<std::ptrdiff_t>(keep), c.ids.end(), likelier);
  c.ids.resize(keep);
  const double top = logits[static_cast<std::size_t>(c.ids[0])];
  for (std::int32_t id : c.ids)
    c.weights.push_back(std::exp((logits[static_cast<std::size_t>(id)] - top) / s.temperature));
  const double total = std::accumulate(c.weights.begin(), c.weights.end(), 0.0);
  double sum = 0;
  for (std::size_t i = 0; i < c.weights.size(); ++i) {
    sum += c.weights[i];
    if (sum < s.top_p * total) continue;
    c.ids.resize(i + 1);
    c.weights.resize(i + 1);
    break;
  }
  return c;
}

// Continues texts as one batch: each step feeds one token of each text to a shared KV cache. A text that has ended
// stays in the batch until the cache is rebuilt.
class Together {
 public:
  Together(const Model& model, const ExecContext& ctx, std::vector<TextStart> starts, KvCacheType cache_type)
      : model_(model), ctx_(ctx), context_(model.config().context), cache_type_(cache_type) {
    for (std::size_t i = 0; i < starts.size(); ++i) {
      RING_CHECK(!starts[i].tokens.empty(), "generate needs at least one token to start from");
      texts_.push_back({i, std::move(starts[i].tokens), starts[i].sampling});
    }
  }

  void run(std::int64_t max_tokens, const std::function<bool(std::size_t, std::int32_t)>& on_token) {
    for (std::int64_t i = 0; i < max_tokens && !ended(); ++i) {
      if (!cache_ || too_long()) start_cache(max_tokens - i);
      std::vector<float> logits = feed();
      const std::size_t vocab = logits.size() / texts_.size();
      for (std::size_t t = 0; t < texts_.size(); ++t) {
        Text& text = texts_[t];
        const std::int32_t next =
            text.ended ? text.tokens.back() : draw(text, std::span(logits).subspan(t * vocab, vocab), i);
        text.ended = text.ended || !on_token(text.number, next);
        text.tokens.push_back(next);
      }
    }
  }

 private:
  struct Text {
    std::size_t number;
    std::vector<std::int32_t> tokens;
    Sampling sampling;
    bool ended = false;
  };

  bool ended() const { return std::ranges::all_of(texts_, &Text::ended); }
  bool is_too_long(const Text& t) const { return static_cast<std::int64_t>(t.tokens.size()) > context_; }
  bool too_long() const {
    return std::ranges::any_of(texts_, [this](const Text& t) { return is_too_long(t); });
  }

  static std::int32_t draw(const Text& text, std::span<float> logits, std::int64_t index) {
    const auto known = static_cast<std::size_t>(text.sampling.tokens);
    if (known > 0) logits = logits.first(std::min(logits.size(), known));
    penalize_repetitions(logits, text.tokens, text.sampling.repetition_penalty);
    return sample_token(logits, text.sampling, static_cast<std::uint64_t>(index));
  }

  void start_cache(std::int64_t max_tokens) {
    std::erase_if(texts_, &Text::ended);
    const auto half = std::max<std::int64_t>(1, context_ / 2);
    std::int64_t capacity = 0;
    for (Text& t : texts_) {
      if (is_too_long(t)) t.tokens.erase(t.tokens.begin(), t.tokens.end() - half);
      const auto length = static_cast<std::int64_t>(t.tokens.size());
      capacity = std::max(capacity, length + std::min(max_tokens, context_ - length));
    }
    cache_.reset();
    cache_ = model_.make_cache(static_cast<std::int64_t>(texts_.size()), capacity, ctx_, cache_type_);
  }

  // Feeds the new tokens of each text to the model, and returns the logits after each text's last token.
  std::vector<float> feed() {
    Sequences seqs;
    seqs.offsets = {0};
    std::vector<std::int32_t> ids, positions, last;
    for (std::size_t t = 0; t < texts_.size(); ++t) {
      const std::vector<std::int32_t>& tokens = texts_[t].tokens;
      for (auto at = static_cast<std::size_t>(cache_->lengths[t]); at < tokens.size(); ++at) {
        ids.push_back(tokens[at]);
        positions.push_back(static_cast<std::int32_t>(at));
      }
      seqs.offsets.push_back(static_cast<std::int32_t>(ids.size()));
      last.push_back(seqs.offsets.back() - 1);
    }
    seqs.positions = from_host(positions, ctx_.stream);
    Run run{ctx_};
    const Var h = model_.hidden(run, from_host(ids, ctx_.stream), seqs, *cache_);
    const Var ends = embedding(run, from_host(last, ctx_.stream), Var{h.value, nullptr});
    return to_host<float>(model_.logits(run, ends.value), ctx_.stream);
  }

  const Model& model_;
  const ExecContext& ctx_;
  const std::int64_t context_;
  const KvCacheType cache_type_;
  std::vector<Text> texts_;
  std::optional<KvCache> cache_;
};

}  // namespace

std::int32_t sample_token(std::span<const float> logits, const Sampling& s, std::uint64_t index) {
  for (float x : logits)
    if (!std::isfinite(x)) fail("the model's logits are not finite (", x, "): its weights are damaged");
  if (s.temperature <= 0)
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const Candidates c = candidates_of(logits, s);
  const double total = std::accumulate(c.weights.begin(), c.weights.end(), 0.0);
  const RandomSite site{s.seed, 0, site_of("generate")};
  double left = total * static_cast<double>(random_bits(site, index)) * 0x1p-32;
  for (std::size_t i = 0; i < c.ids.size(); ++i)
    if ((left -= c.weights[i]) < 0) return c.ids[i];
  return c.ids.back();
}

void penalize_repetitions(std::span<float> logits, std::span<const std::int32_t> text, double penalty) {
  if (penalty == 1) return;
  for (const std::int32_t id : std::set<std::int32_t>(text.begin(), text.end())) {
    const auto at = static_cast<std::size_t>(id);
    if (at >= logits.size()) continue;
    logits[at] = static_cast<float>(logits[at] > 0 ? logits[at] / penalty : logits[at] * penalty);
  }
}

void generate_together(const Model& model, const ExecContext& ctx, std::vector<TextStart> texts,
                       std::int64_t max_tokens, const std::function<bool(std::size_t, std::int32_t)>& on_token,
                       KvCacheType cache_type) {
  Together(model, ctx, std::move(texts), cache_type).run(max_tokens, on_token);
}

void generate(const Model& model, const ExecContext& ctx, std::vector<std::int32_t> prompt, const Sampling& sampling,
              std::int64_t max_tokens, const std::function<bool(std::int32_t)>& on_token) {
  generate_together(model, ctx, {{std::move(prompt), sampling}}, max_tokens,
                    [&](std::size_t, std::int32_t id) { return on_token(id); });
}

}  // namespace ring

#include "evaluate/score.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "comm/host.h"
#include "evaluate/evaluate.h"
#include "job/run_phase.h"
#include "kernels/attention/blocks.h"
#include "kernels/cross_entropy.h"
#include "model/patterns.h"
#include "model/target_scores.h"

namespace ring {

std::int64_t request_align(const ModelConfig& resolved, std::int64_t row_tokens) {
  std::int64_t align = 1;
  const auto take = [&](std::int64_t unit) {
    align = align < row_tokens ? std::lcm(align, std::min(unit, row_tokens)) : row_tokens;
  };
  for (const Pattern& p : patterns_of(resolved)) {
    if (p.blocks) take(p.blocks->block());
    for (const Branch& b : p.branches)
      if (p.from_row && b.segment != kNoSegment) take(b.segment);
  }
  return std::min(align, row_tokens);
}

PackedRequests::PackedRequests(const std::vector<Request>& requests, const ScoreOptions& options, std::int64_t align)
    : requests_(requests), options_(options) {
  std::vector<std::size_t> order(requests.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t r) { return length_of(r); });
  std::multimap<std::int64_t, std::size_t> room;  // row indices by the number of free tokens in the row
  for (const std::size_t r : order) {
    RING_CHECK(requests[r].scored > 0 && static_cast<std::size_t>(requests[r].scored) < requests[r].tokens.size(),
               "request ", r, " judges ", requests[r].scored, " of ", requests[r].tokens.size(), " tokens");
    auto fits = room.lower_bound(length_of(r));
    if (fits == room.end()) fits = room.emplace(options.row, rows_.size()), rows_.emplace_back();
    const std::int64_t at = options.row - fits->first, taken = (length_of(r) + align - 1) / align * align;
    rows_[fits->second].push_back({r, at});
    const std::size_t row = fits->second;
    room.erase(fits);
    if (at + taken < options.row) room.emplace(options.row - at - taken, row);
  }
  const std::int64_t per_batch = options.rows * options.world;
  batches_ = (rows() + per_batch - 1) / per_batch;
}

// Returns how many tokens a request occupies in a row: all but its last token, which is only predicted.
std::int64_t PackedRequests::length_of(std::size_t r) const {
  return std::min(static_cast<std::int64_t>(requests_[r].tokens.size()) - 1, options_.row);
}

void PackedRequests::put(std::size_t r, std::int64_t at, std::int64_t row, Batch& b,
                         std::vector<std::int32_t>& owners) const {
  const Request& request = requests_[r];
  const std::int64_t n = length_of(r), first = row * options_.row + at;
  const std::int32_t* tokens = request.tokens.data() + request.tokens.size() - 1 - static_cast<std::size_t>(n);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto to = static_cast<std::size_t>(first + i);
    b.inputs[to] = tokens[i];
    b.positions[to] = static_cast<std::int32_t>(i);
    owners[to] = static_cast<std::int32_t>(r);
    if (i < n - request.scored) continue;
    b.targets[to] = tokens[i + 1];
    ++b.valid_targets;
  }
  b.starts.push_back(static_cast<std::int32_t>(first));
  b.lengths.push_back(static_cast<std::int32_t>(n));
}

Batch PackedRequests::batch(std::int64_t index, std::vector<std::int32_t>& owners) const {
  const auto tokens = static_cast<std::size_t>(options_.rows * options_.row);
  Batch b;
  b.inputs.assign(tokens, 0);
  b.positions.assign(tokens, 0);
  b.targets.assign(tokens, kIgnoreTarget);
  b.sample_indices.assign(static_cast<std::size_t>(options_.rows), -1);
  owners.assign(tokens, -1);
  for (std::int64_t row = 0; row < options_.rows; ++row) {
    const std::int64_t place = (index * options_.world + options_.rank) * options_.rows + row;
    if (place >= rows()) break;
    b.sample_indices[static_cast<std::size_t>(row)] = place;
    for (const Place& p : rows_[static_cast<std::size_t>(place)]) put(p.request, p.at, row, b, owners);
  }
  return b;
}

namespace {

// Sums over batches and ranks, for each request: the log-probabilities of its scored tokens, and the number of its
// scored tokens that were not the most likely ones.
class ScoreSums {
 public:
  explicit ScoreSums(std::size_t requests) : values_(2 * requests, 0) {}
  void add(const TargetScores& s, const std::vector<std::int32_t>& owners) {
    for (std::size_t i = 0; i < owners.size(); ++i) {
      const auto at = static_cast<std::size_t>(owners[i]);
      values_[at] += s.log_probability[i];
      values_[values_.size() / 2 + at] += !s.likeliest[i];
    }
  }
  void share(Communicator& comm) { all_reduce_host(comm, values_, Reduce::sum); }
  std::vector<Score> scores() const {
    std::vector<Score> out;
    const std::size_t n = values_.size() / 2;
    for (std::size_t i = 0; i < n; ++i) out.push_back({values_[i], values_[n + i] == 0});
    return out;
  }

 private:
  std::vector<double> values_;
};

// Rows to score in a batch, or in this rank's part of a batch, with their targets and requests (owners).
struct Wanted {
  std::vector<std::int32_t> rows, targets, owners;
  Wanted(const Batch& b, const std::vector<std::int32_t>& owner_of) {
    for (std::size_t i = 0; i < b.targets.size(); ++i) {
      if (b.targets[i] == kIgnoreTarget) continue;
      rows.push_back(static_cast<std::int32_t>(i));
      targets.push_back(b.targets[i]);
      owners.push_back(owner_of[i]);
    }
  }
};

// Requests without duplicates, so that equal requests have equal scores: rounding depends on the place in a batch.
struct DistinctRequests {
  std::vector<Request> requests;
  std::vector<std::size_t> index;  // for each of the given requests, its index in `requests`
  explicit DistinctRequests(const std::vector<Request>& all) {
    std::map<std::pair<std::vector<std::int32_t>, std::int64_t>, std::size_t> seen;
    for (const Request& r : all) {
      const auto [found, is_new] = seen.emplace(std::pair(r.tokens, r.scored), requests.size());
      if (is_new) requests.push_back(r);
      index.push_back(found->second);
    }
  }
};

}  // namespace

std::vector<Score> score(const Model& model, const ExecContext& ctx, const std::vector<Request>& requests,
                         const ScoreOptions& options, Communicator& comm, ContextBatches* parts, Communicator* tp,
                         const StopEvaluation& stop) {
  RING_CHECK(!parts || parts->whole() || parts->layout().length() == options.row, "scores in rows of ", options.row,
             " tokens, where ranks share rows of ", parts ? parts->layout().length() : 0);
  const DistinctRequests distinct(requests);
  const PackedRequests packed(distinct.requests, options, request_align(model.config(), options.row));
  ScoreSums sums(distinct.requests.size());
  const bool shared = parts && !parts->whole();
  // Adds the scores of the requests in a batch or in a chunk of it. owners: the request that each token belongs to.
  const auto add = [&](const Batch& b, const std::vector<std::int32_t>& owners, int chunk) {
    Run run{.ctx = ctx, .layout = {.tp = tp}};
    const Tensor positions = positions_of(b, ctx);
    const Sequences seqs = shared ? parts->sequences(b, positions, ctx, chunk)
                                  : Sequences::packed(b.starts, b.lengths, options.row, positions);
    if (shared) parts->set_up_run(run, options.rows, seqs, chunk);
    const ChunkedContext::Chunk computing(shared ? parts->chunked() : nullptr, seqs.shards,
                                          ChunkedContext::Keep::for_forward);
    const Var hidden = model.hidden(run, from_host(b.inputs, ctx.stream), seqs);
    if (!model.has_head()) return;  // a different pipeline stage has the hidden states
    const Wanted wanted(b, owners);
    const TargetScores scores = target_scores(model, run, hidden.value, wanted.rows, wanted.targets);
    // Tensor-parallel ranks have the same scores, which are counted once.
    if (!tp || tp->rank() == 0) sums.add(scores, wanted.owners);
  };
  for (std::int64_t i = 0; i < packed.batches(); ++i) {
    enter(RunPhase::validate);  // shows in each batch that this process makes progress
    if (stop && stop()) throw EvaluationStopped{};
    std::vector<std::int32_t> owners;
    Batch b = packed.batch(i, owners);
    if (!shared) {
      add(b, owners, 0);
      continue;
    }
    Batch tags = b;  // divided among ranks and chunks in the same way as the tokens
    tags.inputs = std::move(owners);
    b = parts->part(b), tags = parts->part(tags);
    for (int chunk = 0; chunk < parts->chunks(); ++chunk)
      add(parts->chunk_of(b, chunk), parts->chunk_of(tags, chunk).inputs, chunk);
  }
  sums.share(comm);
  const std::vector<Score> scores = sums.scores();
  std::vector<Score> out;
  for (const std::size_t i : distinct.index) out.push_back(scores[i]);
  return out;
}

}  // namespace ring

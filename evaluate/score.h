#pragma once
// How likely a model finds the ends of given sequences. Several share a row, apart from each other as packed documents
// are, and several rows a batch.

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "data/loader.h"
#include "evaluate/evaluate.h"
#include "model/model.h"
#include "parallel/context/batch.h"

namespace ring {

// The last `judged` tokens, each given all those before it; at least one token is given.
struct Request {
  std::vector<std::int32_t> tokens;
  std::int64_t judged = 1;
};

struct Score {
  double log_probability = 0;  // of the judged tokens together, natural
  bool greedy = true;          // each of them was the likeliest
};

struct ScoreOptions {
  std::int64_t row = 0;     // tokens of a row; of longer sequences only the newest count
  std::int64_t rows = 1;    // in a batch of a rank
  int rank = 0, world = 1;  // of those that share the requests
};

// Where the requests lie in rows: longest first, each in the fullest row that it fits in. The same for any number of
// ranks.
class PackedRequests {
 public:
  // align: tokens; every request begins at a multiple of it. Error: a request without a given or a judged token.
  // The requests live as long.
  PackedRequests(const std::vector<Request>& requests, const ScoreOptions& options, std::int64_t align);
  std::int64_t rows() const { return static_cast<std::int64_t>(rows_.size()); }  // over all ranks
  std::int64_t batches() const { return batches_; }                              // per rank, the same on each
  // This rank's. `owners` [rows * row] gets the number of the request that a token belongs to.
  Batch batch(std::int64_t index, std::vector<std::int32_t>& owners) const;

 private:
  struct Place {
    std::size_t request;
    std::int64_t at;  // in its row
  };
  void put(std::size_t request, std::int64_t at, std::int64_t row, Batch& batch,
           std::vector<std::int32_t>& owners) const;
  std::int64_t length_of(std::size_t request) const;

  const std::vector<Request>& requests_;
  ScoreOptions options_;
  std::vector<std::vector<Place>> rows_;
  std::int64_t batches_ = 0;
};

// At whose multiples sequences that share a row begin, so that each is computed as if it were alone; `row`: each has
// a row of its own.
std::int64_t request_align(const ModelConfig& resolved, std::int64_t row);

// Each rank computes its rows; all of `comm` get all scores. parts, tp, stop: as of evaluate(). Error: a logit is not
// finite.
std::vector<Score> score(const Model&, const ExecContext&, const std::vector<Request>&, const ScoreOptions&,
                         Communicator& comm, ContextBatches* parts = nullptr, Communicator* tp = nullptr,
                         const StopEvaluation& stop = nullptr);

}  // namespace ring

#pragma once
// Computes how likely a model considers the ends of given sequences. Sequences are packed into rows like documents and
// do not attend to each other; rows form batches.

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "data/loader.h"
#include "evaluate/evaluate.h"
#include "model/model.h"
#include "parallel/context/batch.h"

namespace ring {

// A sequence whose last `scored` tokens are scored, each given all tokens before it. At least one token must precede
// the scored tokens.
struct Request {
  std::vector<std::int32_t> tokens;
  std::int64_t scored = 1;
};

struct Score {
  double log_probability = 0;  // sum over the scored tokens, in nats
  bool greedy = true;          // true if each scored token was the most likely one
};

struct ScoreOptions {
  std::int64_t row = 0;     // capacity of a row in tokens; of a longer sequence, only the last `row` tokens are used
  std::int64_t rows = 1;    // number of rows in a rank's batch
  int rank = 0, world = 1;  // position among the ranks that share the requests
};

// Packs requests into rows: longest first, each into the fullest row with enough space. The result does not depend on
// the number of ranks.
class PackedRequests {
 public:
  // align: every request begins at a multiple of this many tokens. `requests` must outlive this object. Throws Error
  // for a request that has no scored token, or no token before the first scored one.
  PackedRequests(const std::vector<Request>& requests, const ScoreOptions& options, std::int64_t align);
  std::int64_t rows() const { return static_cast<std::int64_t>(rows_.size()); }  // total over all ranks
  std::int64_t batches() const { return batches_; }  // number per rank, the same on each rank
  // Returns a batch of this rank. Fills `owners` [rows * row] with the index of the request that each token belongs to.
  Batch batch(std::int64_t index, std::vector<std::int32_t>& owners) const;

 private:
  struct Place {
    std::size_t request;
    std::int64_t at;  // offset of the request's first token in its row
  };
  void put(std::size_t request, std::int64_t at, std::int64_t row, Batch& batch,
           std::vector<std::int32_t>& owners) const;
  std::int64_t length_of(std::size_t request) const;

  const std::vector<Request>& requests_;
  ScoreOptions options_;
  std::vector<std::vector<Place>> rows_;
  std::int64_t batches_ = 0;
};

// Returns the multiple of tokens at which sequences must begin in a row, so that each sequence gets the same result as
// alone in a row. If this is `row_tokens`, each row holds only one sequence.
std::int64_t request_align(const ModelConfig& resolved, std::int64_t row_tokens);

// Scores all requests. Each rank computes its own rows; all ranks of `comm` get all scores. parts, tp, stop: as in
// evaluate(). Equal requests get the same score. Throws Error if a logit is not finite.
std::vector<Score> score(const Model&, const ExecContext&, const std::vector<Request>&, const ScoreOptions&,
                         Communicator& comm, ContextBatches* parts = nullptr, Communicator* tp = nullptr,
                         const StopEvaluation& stop = nullptr);

}  // namespace ring

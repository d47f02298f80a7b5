#pragma once
// Loss over a validation set.

#include <functional>
#include <optional>

#include "comm/communicator.h"
#include "data/loader.h"
#include "engine/preference.h"
#include "evaluate/source_loss.h"
#include "model/model.h"
#include "parallel/context/batch.h"

namespace ring {

class StopSignal;

struct Evaluation {
  double loss = 0;      // mean negative log-likelihood per token, in nats
  double accuracy = 0;  // share of tokens that the model ranked first (or tied for first)
  std::int64_t tokens = 0;
  std::optional<PairLoss> pairs;     // with preference.loss: means over pairs; then `tokens` is the number of pairs
  std::vector<SourceLoss> sources;   // loss of each corpus of a mixture; empty if there is only one corpus
  std::vector<double> batch_losses;  // mean loss per token of each batch that this rank computed, in order
  double perplexity() const;
  double bits_per_byte(double bytes_per_token) const;
};

// Returns the sequences of a batch; tokens do not attend across their boundaries. context: tokens per row.
Sequences sequences_of(const Batch&, std::int64_t context, const ExecContext&);
// Returns each token's position in its document if the batch is packed; otherwise an undefined tensor.
Tensor positions_of(const Batch&, const ExecContext&);

// Returns true if an evaluation should end early. Must return the same value on all ranks.
using StopEvaluation = std::function<bool()>;
struct EvaluationStopped {};  // thrown by an evaluation that ended early
// Returns a function that tells whether any rank was told to stop: schedulers kill a job about 30 s after signalling
// it, and an evaluation may take longer. Both arguments must outlive the result.
StopEvaluation stop_on(const StopSignal& signal, Communicator& comm);

// Computes the loss over a validation set, with dropout off. Each rank computes its own batches, and all ranks of
// `comm` get the same result. Throws EvaluationStopped if `stop` returns true.
//   parts  with context parallelism: all ranks of the cp axis have the same batches, and each rank computes its part of
//          them; may be null
//   tp     ranks that hold shards of the weights (tensor parallelism) and have the same batches; may be null
//   stop   called before each batch; may be null
Evaluation evaluate(const Model&, const ExecContext&, const ValidationSet&, Communicator& comm,
                    ContextBatches* parts = nullptr, Communicator* tp = nullptr, const StopEvaluation& stop = nullptr);

}  // namespace ring

#pragma once
// Loss over a validation set.

#include <functional>

#include "comm/communicator.h"
#include "data/loader.h"
#include "evaluate/source_loss.h"
#include "model/model.h"
#include "parallel/context/batch.h"

namespace ring {

class StopSignal;

struct Evaluation {
  double loss = 0;      // mean negative log-likelihood per token, in nats
  double accuracy = 0;  // share of the tokens than which the model found no other likelier
  std::int64_t tokens = 0;
  std::vector<SourceLoss> sources;   // of each corpus of a mixture; empty: there is one
  std::vector<double> batch_losses;  // mean per token of each batch that this rank computed, in their order
  double perplexity() const;
  double bits_per_byte(double bytes_per_token) const;
};

// What belongs together in a batch whose rows have `context` tokens.
Sequences sequences_of(const Batch&, std::int64_t context, const ExecContext&);
Tensor positions_of(const Batch&, const ExecContext&);  // of packed documents; else undefined

// Asks whether an evaluation is to end early. The same answer on all ranks.
using StopEvaluation = std::function<bool()>;
struct EvaluationStopped {};  // thrown then
// Asks whether any rank was told to stop: schedulers kill some 30 s after they signal, and evaluations may take longer.
// Both arguments live as long as what is returned.
StopEvaluation stop_on(const StopSignal& signal, Communicator& comm);

// Each rank computes its batches; all of `comm` get the same result. Dropout is off. With `parts`, ranks of the cp axis
// have the same batches, and each computes its part of them. tp: those that hold the slices of the model, and have the
// same batches; or null. stop: asked before each batch; if null, nothing ends the evaluation early.
Evaluation evaluate(const Model&, const ExecContext&, const ValidationSet&, Communicator& comm,
                    ContextBatches* parts = nullptr, Communicator* tp = nullptr, const StopEvaluation& stop = nullptr);

}  // namespace ring

#pragma once
// Loss over a validation set.

#include "comm/communicator.h"
#include "data/loader.h"
#include "model/decoder.h"

namespace ring {

struct Evaluation {
  double loss = 0;  // mean negative log-likelihood per token, in nats
  std::int64_t tokens = 0;
  double perplexity() const;
  double bits_per_byte(double bytes_per_token) const;
};

// What belongs together in a batch whose rows have `context` tokens.
Sequences sequences_of(const Batch&, std::int64_t context, const Context&);

// Each rank computes its batches; all of `comm` get the same result. Dropout is off. tp: those that hold the slices of
// the model, and have the same batches; or null.
Evaluation evaluate(const Decoder&, const Context&, const ValidationSet&, Communicator& comm,
                    Communicator* tp = nullptr);

}  // namespace ring

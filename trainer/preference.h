#pragma once
// Training on pairs of answers (preference.loss): scores the answers before each step, and holds the scores that the
// initial weights give them.

#include <cstdint>
#include <vector>

#include "checkpoint/state.h"
#include "comm/mesh/mesh.h"
#include "data/loader.h"
#include "engine/train_step.h"
#include "evaluate/evaluate.h"

namespace ring {

// The references are computed once, before the first step, and saved in checkpoints, so that a resumed run has the same
// ones. All references must outlive the object.
class PreferenceTraining {
 public:
  // island_host: the ranks of this island, with values in host memory.
  PreferenceTraining(const PreferenceConfig&, TrainStep&, Mesh&, Communicator& island_host, const Loader&);

  // Scores the answers of the next step and sets the weights of their tokens. batches: this rank's parts of the
  // micro-batches, which were passed to TrainStep::load(). Blocks until the device is done. Collective.
  void weigh(const std::vector<Batch>& batches);
  // Computes loss and rewards over a validation set, with dropout off. All ranks of `comm` get the same result. Throws
  // EvaluationStopped if `stop` returns true.
  Evaluation evaluate(const ValidationSet&, Communicator& comm, const StopEvaluation& stop = nullptr);

  void add_state(State&);
  void on_state_loaded();  // call after loading the state

 private:
  // Returns the log-probabilities of the answers of a batch, with dropout off.
  std::vector<AnswerScore> score(const Batch& part);
  std::vector<AnswerScore> sum_over_ranks(const std::vector<AnswerScore>& own);
  void compute_references();
  void add_references(Split, std::vector<double>& sums);
  std::size_t first_reference(Split s) const { return s == Split::train ? 0 : train_documents_; }
  PairResult result_of(const Batch&, std::size_t pair, const AnswerScore* scores, Split) const;
  // Returns true if this rank's scores and losses count: other tensor-parallel ranks and pipeline stages have the same
  // ones, or none.
  bool counts() const;

  const PreferenceConfig& config_;
  TrainStep& step_;
  Mesh& mesh_;
  Communicator& island_host_;
  const Loader& loader_;
  std::size_t train_documents_ = 0;
  std::vector<double> references_;  // by document, first of the training split; NaN before they are computed
  Tensor saved_;                    // references_ as bytes, on the device; undefined if no references are needed
};

}  // namespace ring

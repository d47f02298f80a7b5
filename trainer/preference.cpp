#include "trainer/preference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "comm/host.h"
#include "core/log.h"
#include "data/token_store.h"
#include "job/run_phase.h"

namespace ring {
namespace {

std::vector<double> numbers_in(std::string_view bytes) {
  std::vector<double> numbers(bytes.size() / sizeof(double));
  std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(double));
  return numbers;
}

std::string bytes_of(std::span<const double> numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes()};
}

}  // namespace

PreferenceTraining::PreferenceTraining(const PreferenceConfig& config, TrainStep& step, Mesh& mesh,
                                       Communicator& island_host, const Loader& loader)
    : config_(config), step_(step), mesh_(mesh), island_host_(island_host), loader_(loader) {
  const TokenStore& store = *loader.corpora().stores.front();
  RING_CHECK(store.train().pairs(), "preference.loss without pairs of answers in ", store.path());
  if (!config.needs_reference()) return;
  train_documents_ = store.train().documents();
  references_.assign(train_documents_ + store.validation().documents(), std::numeric_limits<double>::quiet_NaN());
  saved_ = Tensor::empty({static_cast<std::int64_t>(references_.size() * sizeof(double))}, DType::u8,
                         step.exec().stream, Lifetime::run);
  step.exec().stream.impl().upload(saved_.raw(), references_.data(), saved_.bytes());
}

bool PreferenceTraining::counts() const { return mesh_.coord("tp") == 0 && step_.model().has_head(); }

// Adds up the scores of the ranks that hold parts of the same batch. The first number of each message is the replica.
std::vector<AnswerScore> PreferenceTraining::sum_over_ranks(const std::vector<AnswerScore>& own) {
  const double replica = mesh_.coord("dp");
  std::vector<double> numbers{counts() ? replica : -1};
  for (const AnswerScore& s : own) numbers.insert(numbers.end(), {s.log_probability, s.targets});
  std::vector<AnswerScore> sums(own.size());
  for (const std::string& message : gather_host(island_host_, bytes_of(numbers))) {
    const std::vector<double> theirs = numbers_in(message);
    if (theirs[0] != replica) continue;
    RING_CHECK(theirs.size() == numbers.size(), "ranks of one replica have different answers");
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i].log_probability += theirs[1 + 2 * i];
      sums[i].targets += theirs[2 + 2 * i];
    }
  }
  return sums;
}

PairResult PreferenceTraining::result_of(const Batch& b, std::size_t pair, const AnswerScore* scores, Split s) const {
  const auto reference = [&](std::size_t answer) {
    return references_.empty() ? 0 : references_[first_reference(s) + b.documents[answer]];
  };
  const std::size_t chosen = 2 * pair, rejected = chosen + 1;
  return pair_loss(config_, scores[chosen], scores[rejected], reference(chosen), reference(rejected));
}

void PreferenceTraining::weigh(const std::vector<Batch>& batches) {
  compute_references();
  const std::vector<AnswerScore> scores = sum_over_ranks(step_.score_answers(batches));
  std::vector<float> weights;
  PairLoss sums;
  const AnswerScore* of_batch = scores.data();
  for (const Batch& b : batches) {
    std::vector<float> by_answer;
    for (std::size_t pair = 0; 2 * pair < b.documents.size(); ++pair) {
      const PairResult r = result_of(b, pair, of_batch, Split::train);
      sums += r.loss;
      by_answer.push_back(static_cast<float>(r.weights.chosen));
      by_answer.push_back(static_cast<float>(r.weights.rejected));
    }
    for (std::size_t i = 0; i < b.targets.size(); ++i) {
      const std::int32_t answer = b.answers.empty() ? -1 : b.answers[i];
      weights.push_back(answer < 0 ? 0 : by_answer[static_cast<std::size_t>(answer)]);
    }
    of_batch += b.documents.size();
  }
  const bool adds = step_.model().has_head() && mesh_.coord("cp") == 0;  // losses are summed over cp and pp
  step_.set_pair_weights(weights, adds ? sums : PairLoss{});
}

std::vector<AnswerScore> PreferenceTraining::score(const Batch& part) {
  const ExecContext& ctx = step_.exec();
  Run run{.ctx = ctx, .layout = {.tp = &mesh_.axis("tp")}};
  const Sequences seqs = step_.cp_batches().sequences(part, positions_of(part, ctx), ctx);
  step_.cp_batches().set_up_run(run, static_cast<std::int64_t>(part.sample_indices.size()), seqs);
  LossHead head;
  head.targets = from_host(part.targets, ctx.stream);
  const LossOutput out = step_.model().loss(run, from_host(part.inputs, ctx.stream), seqs, head);
  std::vector<AnswerScore> scores(part.documents.size());
  if (step_.model().has_head() && !scores.empty())
    add_answers(part, to_host<float>(out.token_loss, ctx.stream), scores);
  return sum_over_ranks(scores);
}

// Fills the references of this replica's rows of a split.
void PreferenceTraining::add_references(Split split, std::vector<double>& sums) {
  const ValidationSet set(loader_.corpora(), loader_.options(), 0, split);
  for (std::int64_t i = 0; i < set.batches(); ++i) {
    enter(RunPhase::validate);
    const Batch b = step_.cp_batches().part(set.batch(i));
    const std::vector<AnswerScore> scores = score(b);
    for (std::size_t a = 0; a < scores.size(); ++a)
      sums[first_reference(split) + b.documents[a]] = scores[a].log_probability;
  }
}

// Each replica computes the references of its rows; the others have zeros there.
void PreferenceTraining::compute_references() {
  if (references_.empty() || !std::isnan(references_.front())) return;
  if (mesh_.rank() == 0) log::info("computing the reference log-probabilities of ", references_.size(), " answers");
  std::vector<double> sums(references_.size());
  add_references(Split::train, sums);
  if (references_.size() > train_documents_) add_references(Split::validation, sums);
  const bool adds = mesh_.coord("tp") == 0 && mesh_.coord("cp") == 0 && mesh_.coord("pp") == 0;
  if (!adds) std::ranges::fill(sums, 0.0);
  all_reduce_host(island_host_, sums, Reduce::sum);
  for (const double r : sums)
    if (!std::isfinite(r)) fail("the model's logits are not finite: its weights are damaged");
  references_ = sums;
  step_.exec().stream.impl().upload(saved_.raw(), references_.data(), saved_.bytes());
}

Evaluation PreferenceTraining::evaluate(const ValidationSet& set, Communicator& comm, const StopEvaluation& stop) {
  compute_references();
  PairLoss sums;
  double pairs = 0;
  const bool adds = mesh_.coord("tp") == 0 && mesh_.coord("cp") == 0 && mesh_.coord("pp") == 0;
  for (std::int64_t i = 0; i < set.batches(); ++i) {
    if (stop && stop()) throw EvaluationStopped{};
    enter(RunPhase::validate);
    const Batch b = step_.cp_batches().part(set.batch(i));
    const std::vector<AnswerScore> scores = score(b);
    for (std::size_t pair = 0; adds && 2 * pair < scores.size(); ++pair, ++pairs)
      sums += result_of(b, pair, scores.data(), Split::validation).loss;
  }
  std::array all{sums.loss, sums.chosen, sums.rejected, sums.correct, pairs};
  all_reduce_host(comm, all, Reduce::sum);
  const double n = std::max(all[4], 1.0);
  Evaluation e;
  e.pairs = PairLoss{all[0] / n, all[1] / n, all[2] / n, all[3] / n};
  e.loss = e.pairs->loss, e.accuracy = e.pairs->correct;
  e.tokens = static_cast<std::int64_t>(all[4]);
  return e;
}

void PreferenceTraining::add_state(State& state) {
  if (saved_.defined()) state.add("preference.references", saved_);
}

void PreferenceTraining::on_state_loaded() {
  if (!saved_.defined()) return;
  const std::vector<std::uint8_t> bytes = to_host<std::uint8_t>(saved_, step_.exec().stream);
  std::memcpy(references_.data(), bytes.data(), bytes.size());
}

}  // namespace ring

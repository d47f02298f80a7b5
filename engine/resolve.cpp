#include "engine/resolve.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/cpu/thread_pool.h"
#include "core/log.h"
#include "data/loader.h"
#include "engine/devices.h"

namespace ring {
namespace {

// Sets the device. On a CPU, settings that need a GPU are replaced: training is in fp32. fp8 moments do not need one.
void resolve_device(Config& c, Backend backend, bool warn) {
  c.run.device = backend == Backend::cuda ? DeviceChoice::cuda : DeviceChoice::cpu;
  OptimizerConfig& o = c.optimizer;
  const bool bf16_states = o.master == DType::bf16 || o.moments == MomentType::bf16 || o.gradients == DType::bf16;
  if (backend == Backend::cpu) {
    if (warn &&
        (bf16_states || c.train.precision == PrecisionChoice::bf16 || c.train.precision == PrecisionChoice::tf32))
      log::warn("CPUs compute in fp32, so train.precision and bf16 types of optimizer.* are set to fp32");
    c.train.precision = PrecisionChoice::fp32;
    o.master = o.gradients = DType::f32;
    if (o.moments == MomentType::bf16) o.moments = MomentType::f32;
    return;
  }
  if (c.train.precision == PrecisionChoice::automatic) c.train.precision = PrecisionChoice::bf16;
  if (c.train.precision != PrecisionChoice::bf16 && bf16_states)
    fail("optimizer.master, .moments and .gradients: bf16 requires train.precision: bf16");
}

// Throws Error if the tensors of a micro-batch would have more bytes than 64 bits can count.
void check_activations(const Config& c, std::int64_t rows) {
  constexpr std::int64_t kMaxNumbers = std::int64_t{1} << 58;
  const ModelConfig& m = c.model;
  const std::int64_t widest = std::max({m.width, (m.heads + 2 * m.kv_heads) * m.head_dim, 2 * m.mlp_width});
  if (rows * m.context > kMaxNumbers / widest)
    fail("train.micro_batch: ", rows, " sequences of ", m.context, " tokens, each with ", widest,
         " elements in its widest layer, fit into no machine's memory. Lower train.micro_batch or model.context, or "
         "use a smaller "
         "model");
}

}  // namespace

void resolve_length(Config& c, const Corpora& corpora) {
  const double epochs = std::exchange(c.train.epochs, 0);
  if (epochs == 0 && c.train.steps == 0 && c.train.tokens == 0 && c.train.minutes == 0)
    fail("train.steps: expected the length of the run in steps, got 0. Give train.steps, train.tokens, train.epochs ",
         "or train.minutes");
  if (epochs == 0) return;
  const SampleMap map(corpora, c.model.context, c.run.seed, c.data.packing);
  std::uint64_t samples = 0;
  for (std::size_t i = 0; i < corpora.stores.size(); ++i) samples += map.windows(i);
  const double all = std::ceil(epochs * static_cast<double>(samples));
  const auto max = std::min<std::int64_t>(kMaxSteps, kMaxTokens / c.model.context / c.train.batch_size);
  const double tokens = std::min(all * static_cast<double>(c.model.context), static_cast<double>(kMaxTokens));
  const std::int64_t steps = steps_of_tokens(c.train, c.model.context, static_cast<std::int64_t>(tokens));
  if (steps > max || all / static_cast<double>(c.train.batch_size) > static_cast<double>(max))
    fail("train.epochs: ", epochs, " epochs of ", samples, " samples need ",
         std::ceil(all / static_cast<double>(c.train.batch_size)), " steps of train.batch_size ", c.train.batch_size,
         ", or more smaller ones, but a run has at most ", max, ". Lower train.epochs or enlarge the steps");
  c.train.steps = std::max<std::int64_t>(1, steps);
}

ResolvedConfig resolve_config(Config c, std::int64_t corpus_vocab, int world, std::optional<Backend> launched,
                              bool warn) {
  if (!c.model.vocab_size) c.model.vocab_size = corpus_vocab;
  if (c.model.vocab_size < corpus_vocab)
    fail("model.vocab_size: ", c.model.vocab_size, " is smaller than the corpus's vocabulary of ", corpus_vocab,
         ". For a new model, set it to 0 to use the corpus's; for trained weights, prepare the corpus with their "
         "tokenizer (data prepare --tokenizer)");
  c.model = c.model.resolved();
  c.parallel = without_auto(std::move(c.parallel));  // for commands that do not call choose_layout()
  if (!c.run.threads) c.run.threads = default_threads();
  resolve_device(c, launched.value_or(backend_of(c.run.device)), warn);
  if (c.train.tokens) c.train.steps = steps_of_tokens(c.train, c.model.context, c.train.tokens);
  c.train.tokens = 0;
  ResolvedConfig resolved(std::move(c));
  check_sizes(resolved, world);
  return resolved;
}

ResolvedConfig resolve_config(Config c, std::int64_t corpus_vocab, Mesh& mesh) {
  const auto launched = mesh.world() > 1 ? std::optional(mesh.device().backend) : std::nullopt;
  return resolve_config(std::move(c), corpus_vocab, mesh.world(), launched, mesh.rank() == 0);
}

void check_sizes(const ResolvedConfig& c, int world) {
  BatchSize sizes = batch_size(c);
  if (c.train.micro_batch == kAutoMicroBatch) sizes.micro_batch = 1;
  const std::int64_t rows = make_plan(c.parallel, c.model, sizes, world).micro_batch;
  check_tokens_at_once("train.micro_batch", rows, c.model.context);
  check_activations(c, rows);
}

}  // namespace ring

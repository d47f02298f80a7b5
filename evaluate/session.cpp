#include "evaluate/session.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "checkpoint/fp8_tensors.h"
#include "checkpoint/reader.h"
#include "core/log.h"
#include "engine/devices.h"
#include "engine/memory_check.h"
#include "evaluate/context.h"
#include "kernels/tuning.h"
#include "model/architectures.h"
#include "model/attention_schedule.h"
#include "model/training_state.h"

namespace ring {

namespace {

// Returns this process's shard of a logical parameter. The shard has no rows if the process owns no part of the
// parameter.
StateTensor state_tensor(const std::string& name, const Param& param, const LogicalParam& part,
                         const std::vector<ShardPiece>& owned, const FlatBuffer& buffer) {
  const std::int64_t columns = param.shape.size() == 2 ? param.shape[1] : 1;
  PieceRows rows;
  Tensor values = buffer.flat.narrow(0, 0, 0);
  for (const ShardPiece& piece : owned) {
    if (piece.param != &param || !rows_of(piece, part).rows) continue;
    RING_CHECK(!rows.rows, name, " is owned in more than one piece");
    rows = rows_of(piece, part);
    values = buffer.of(piece).narrow(0, rows.at, rows.rows * columns);
  }
  Shape start = part.start;
  start[0] += rows.first;
  return {name, part.whole, start, param.shape.size() == 2 ? values.view({rows.rows, columns}) : values};
}

}  // namespace

void add_parameters(State& state, const std::string& prefix, const Parameters& params,
                    const std::vector<ShardPiece>& owned, const FlatBuffer& buffer, const Holds& holds,
                    const std::optional<CodeScales>& fp8) {
  for (const Param* p : params.whole_layout())
    for (const LogicalParam& part : p->parts) {
      if (holds && !holds(*p, part)) continue;
      StateTensor tensor = state_tensor(prefix + part.name, *p, part, owned, buffer);
      if (fp8) {
        const std::int64_t place = tensor.local.raw() - buffer.flat.raw();  // a code has one byte
        const Tensor scales = fp8->scales.narrow(0, place / kMomentBlock, moment_blocks(tensor.local.numel()));
        state.add(scales_of(tensor, fp8->form, scales));
      }
      state.add(std::move(tensor));
    }
}

FoundCheckpoint find_checkpoint(const std::string& path) {
  std::error_code error;
  check_exists(path);
  if (std::filesystem::exists(path + "/" + kManifestName, error)) {
    Verification v = verify_during_training(path);
    if (v.removed) fail(path, " was removed while it was read, as runs remove old checkpoints");
    if (!v.problems.empty())
      fail(path, ": damaged checkpoint: ", v.problems.front(), ". To use an older one, give the run instead");
    return {path, std::move(v.manifest), v.identity};
  }
  const RunDirectory run = find_run(path);
  if (!std::filesystem::equivalent(path, run.path(), error))
    fail(path, ": neither a run nor a checkpoint, although it is inside the run ", run.path());
  std::optional<FoundCheckpoint> found = find_newest_verified(run.checkpoints());
  if (!found)
    fail(run.path(), ": the run has no checkpoint yet. Wait for its first one, or resume the run: ringmaster train ",
         run.path());
  return *std::move(found);
}

std::string tokenizer_file_of(const Origin& origin) {
  const std::optional<RunDirectory> run = run_containing(origin.checkpoint);
  const std::string beside = origin.checkpoint + "/tokenizer.rmt";
  std::error_code error;
  if (std::filesystem::exists(beside, error)) return beside;
  if (run && (origin.imported.empty() || !origin.tokenizer_hash().empty())) return run->tokenizer_file();
  if (run)
    fail(run->path(), ": there was no tokenizer with the weights that were imported from ", origin.imported,
         ". Import them again with --tokenizer FILE");
  fail(origin.checkpoint, ": the checkpoint is not inside a run, so its tokenizer (hash ", origin.tokenizer_hash(),
       ") cannot be found. Copy the run's tokenizer.rmt into it");
}

std::shared_ptr<const Tokenizer> tokenizer_of(const Origin& origin) {
  return load_tokenizer_of(origin, tokenizer_file_of(origin));
}

chat::Format chat_format_of(const Origin& origin) { return chat_format_beside(tokenizer_file_of(origin)); }

chat::Format chat_format_of(const Origin& origin, const std::string& choice, const Tokenizer& tokenizer) {
  return load_chat_format(choice, tokenizer_file_of(origin), tokenizer);
}

void check_has_average(const FoundCheckpoint& found) {
  const auto& tensors = found.manifest.tensors;
  if (const auto first = tensors.lower_bound(kAveragePrefix);
      first == tensors.end() || !first->first.starts_with(kAveragePrefix))
    fail("--weights ema: ", found.path.string(),
         " has no average of its weights. Train with train.ema, or leave the option out");
}

void use_averaged_weights(FoundCheckpoint& found) {
  check_has_average(found);
  auto& tensors = found.manifest.tensors;
  std::erase_if(tensors, [](const auto& t) { return t.first.starts_with(kWeightsPrefix); });
  for (auto t = tensors.lower_bound(kAveragePrefix); t != tensors.end() && t->first.starts_with(kAveragePrefix);) {
    auto entry = tensors.extract(t++);
    entry.key() = kWeightsPrefix + entry.key().substr(std::string_view(kAveragePrefix).size());
    tensors.insert(std::move(entry));
  }
}

void load_model_weights(Model& model, const std::string& checkpoint, const ExecContext& ctx, SavedWeights which) {
  const char* const prefix = which == SavedWeights::ema ? kAveragePrefix : kWeightsPrefix;
  State state;
  const OwnedShard all = own_everything(model.parameters());
  add_parameters(state, prefix, model.parameters(), all.pieces, all.values);
  load_weights(checkpoint, state, prefix, ctx.stream);
  model.parameters().refresh_weights(ctx);
  load_training_states(model, checkpoint);
}

std::vector<std::string> load_training_states(Model& model, const std::string& checkpoint) {
  const Manifest manifest = read_manifest(checkpoint);
  std::vector<std::string> texts;
  for (TrainingState* state : model.training_states()) {
    const auto first = manifest.tensors.lower_bound(state->prefix());
    if (first == manifest.tensors.end() || !first->first.starts_with(state->prefix())) continue;
    std::string text = state->load(checkpoint, manifest, settings_in(manifest.metadata, checkpoint).model);
    if (!text.empty()) texts.push_back(std::move(text));
  }
  return texts;
}

namespace {

void warn_of_other_settings(const RunDirectory& run, const Origin& origin, const RunSettings& file) {
  std::string list;
  for (const std::string& change : changes_of_results(origin.config, file.config)) list += "\n  " + change;
  if (list.empty()) return;
  if (may_replace_settings(file, origin))  // the user allowed these changes; newer checkpoints are gone or damaged
    log::warn("the checkpoint ", origin.checkpoint,
              " was saved before the run's settings were changed. Its own settings are used:", list);
  else
    log::warn(run.config_file(), " differs from the settings in the checkpoint ", origin.checkpoint,
              ", which are used here:", list, "\nTo restore the file: ", run.restoring_command(origin.checkpoint));
}

// Returns the checkpoint's settings with the session's changes. Uses the run's current corpus path, since the corpus
// may have been moved.
Config session_config(const std::optional<RunDirectory>& run, const Origin& origin, const SessionOptions& options) {
  Config config = origin.config;
  if (options.change) options.change(config);
  if (run && run->has_config()) {
    const RunSettings file = settings_in_file(*run, true);
    warn_of_other_settings(*run, origin, file);
    const DataConfig& data = file.config.data;
    if (config.data.mixture.empty() && data.mixture.empty()) config.data.path = data.path;
  } else if (run) {
    log::warn(run->path(), " has no config.yaml. Using the settings in ", origin.checkpoint);
  }
  if (run) config.run.directory = run->path();
  config.run.device = options.device;
  config.run.threads = options.threads;
  return config;
}

void adopt_choices_of(const FoundCheckpoint& found, const ExecContext& ctx) {
  if (!ctx.tuning || adopt_kernel_choices(*ctx.tuning, found.manifest.metadata) == 0) return;
  log::warn("measured choices in tuning.yaml differed from those of the checkpoint ", found.path.string(),
            ". The checkpoint's apply, so the numbers match the run's");
}

// Returns the number of tokens trained before the checkpoint. Weights that were not trained here count as fully
// trained.
std::int64_t tokens_of(const Manifest& manifest) {
  const auto value = manifest.values.find(kTrainedTokensName);
  return value == manifest.values.end() ? kAfterAllTokens : std::get<std::int64_t>(value->second);
}

// Throws Error if the model does not support the type. The model needs no weights yet.
void check_kv_cache(const Model& model, const ExecContext& ctx, KvCacheType type) {
  if (type == KvCacheType::automatic) return;
  try {
    model.make_cache(1, 1, ctx, type);
  } catch (const Error& e) {
    fail("--kv-cache fp8: ", e.what(),
         ". Use --kv-cache auto for models with pools or with blocks selected by content");
  }
}

Session session_of(const FoundCheckpoint& found, const SessionOptions& options) {
  if (options.weights == SavedWeights::ema) check_has_average(found);
  Origin origin = origin_of(found);
  const std::optional<RunDirectory> run = run_containing(origin.checkpoint);
  Config config = session_config(run, origin, options);
  config.model = with_attention_at(config.model, tokens_of(found.manifest));
  if (options.context > 0) set_context(config.model, options.context);
  check_blocks(origin);
  Session s{config, make_exec_context(config), tokenizer_of(origin), nullptr, {}};
  adopt_choices_of(found, s.ctx);
  s.model = make_model(config.model, vocab_padding(s.ctx.stream.device().backend));
  check_kv_cache(*s.model, s.ctx, options.kv_cache);
  s.model->set_mlp_chunk(config.train.mlp_chunk);
  const DType type = activation_type(s.ctx.precision);
  const ParamTypes types{.master = type, .weights = type, .trainable = false};
  check_memory(*s.model, s.ctx.stream.device(), types);
  s.model->allocate(s.ctx, config.run.seed, types);
  if (found.manifest.values.contains("train.step")) s.model->set_attention_step(found.manifest.step);
  load_model_weights(*s.model, origin.checkpoint, s.ctx, options.weights);
  s.kv_cache = options.kv_cache;
  s.origin = std::move(origin);
  return s;
}

}  // namespace

Session open_session(const std::string& path, const SessionOptions& options) {
  std::optional<Session> session;
  const auto find = [&] { return find_checkpoint(path); };
  read_found(find, [&](const FoundCheckpoint& found) { session.emplace(session_of(found, options)); });
  return *std::move(session);
}

Sampling resolve_sampling(const Session& session, Sampling wanted) {
  wanted.tokens = session.tokenizer->vocab_size();
  return wanted;
}

}  // namespace ring

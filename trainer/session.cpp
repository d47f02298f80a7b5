#include "trainer/session.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/reader.h"
#include "core/fields.h"
#include "generated/build_info.h"

namespace ring {

void add_parameters(State& state, const std::string& prefix, const Parameters& params, const Tensor& flat) {
  for (const Param* p : params.layout())
    for (const LogicalParam& part : p->parts) state.add(prefix + part.name, p->part_of(flat, part));
}

std::string checkpoint_metadata(const Config& config) {
  const std::string text = to_yaml(config);
  const nlohmann::json json = {{"config", text},
                               {"config_hash", hash_text(text)},
                               {"version", build_info::kVersion},
                               {"commit", build_info::kCommit}};
  return json.dump();
}

std::string find_checkpoint(const std::string& path) {
  if (!std::filesystem::exists(path)) fail(path, ": there is no such run or checkpoint");
  const RunDirectory run = find_run(path);
  if (std::filesystem::exists(path + "/manifest.json")) {
    const std::vector<std::string> problems = verify_checkpoint(path);
    if (!problems.empty())
      fail(path, ": damaged checkpoint: ", problems.front(), ". Give the run instead to use an older one");
    return path;
  }
  if (!std::filesystem::equivalent(path, run.path()))
    fail(path, ": neither a run nor a checkpoint, although inside of the run ", run.path());
  const std::optional<FoundCheckpoint> found = find_newest_verified(run.checkpoints());
  if (!found)
    fail(run.path(), ": the run has no checkpoint yet. Wait for its first one, or go on with it: ringmaster train ",
         run.path());
  return found->path.string();
}

void load_model_weights(Decoder& model, const std::string& checkpoint, const Context& ctx) {
  State state;
  add_parameters(state, kWeightsPrefix, model.parameters(), model.parameters().values);
  load_weights(checkpoint, state, kWeightsPrefix, ctx.stream);
}

std::int64_t vocab_padding(Backend backend) { return backend == Backend::cuda ? 128 : 1; }

Session::Session(const std::string& path, int threads)
    : config(find_run(path).config()), ctx{Stream::create({config.run.device, 0}, threads)} {
  tokenizer = load_tokenizer(find_run(path).tokenizer_file());
  model = std::make_unique<Decoder>(config.model, vocab_padding(config.run.device));
  model->allocate(ctx, config.run.seed);
  load_model_weights(*model, find_checkpoint(path), ctx);
}

}  // namespace ring

#include "engine/agreement.h"

#include <algorithm>
#include <filesystem>

#include "core/counted.h"
#include "core/fields.h"
#include "core/files.h"
#include "data/token_store.h"
#include "generated/build_info.h"
#include "kernels/attention/blocks.h"
#include "model/patterns.h"

namespace ring {
namespace {

std::string identity(const TokenSplit& split) {
  const auto tokens = static_cast<std::int64_t>(split.tokens());
  return tokens ? str(counted(tokens, "token"), " with hash ", split.tokens_hash()) : "no tokens";
}

std::string listed(const std::vector<std::uint64_t>& hashes) {
  std::string text;
  for (const std::uint64_t hash : hashes) text += str(text.empty() ? "" : ", ", "hash ", hash);
  return text.empty() ? "none" : text;
}

}  // namespace

std::vector<std::uint64_t> block_file_hashes(const ModelConfig& resolved) {
  std::vector<std::uint64_t> hashes;
  const std::vector<Pattern> patterns = patterns_of(resolved);
  for (std::size_t layer = 0; layer < patterns.size(); ++layer) {
    const AttentionConfig& attention = attention_of(resolved, static_cast<std::int64_t>(layer));
    if (std::ranges::all_of(attention.rules, &std::string::empty, &BlockRuleConfig::file)) continue;
    const std::uint64_t hash = patterns[layer].blocks->version();
    if (std::ranges::find(hashes, hash) == hashes.end()) hashes.push_back(hash);
  }
  return hashes;
}

Topic settings_topic() {
  return {"settings", "the ranks were started differently",
          "All ranks must have the same values. Start each with the same settings file, options and program"};
}

Facts facts_of_start(const Config& c, Backend device, const CommOptions& options, const Facts& extra_facts) {
  Facts facts = global_values(c);
  facts.push_back(
      {"the program", str(build_info::kVersion, " (", build_info::kCommit, ", ", build_info::kBuildType, ")")});
  facts.push_back({"the device (run.device)", std::string(to_string(device))});
  facts.push_back({"RINGMASTER_COPY_ENGINES", options.copy_engines ? "1" : "0"});
  facts.insert(facts.end(), extra_facts.begin(), extra_facts.end());
  return facts;
}

Facts facts_of_data(const Corpora& corpora) {
  Facts facts = {{"the tokenizer of the corpus", corpora.tokenizer_hash}};
  for (std::size_t i = 0; i < corpora.stores.size(); ++i) {
    const std::string key = corpora.stores.size() == 1 ? "data.path" : str("data.mixture[", i, "].path");
    facts.push_back({key + " (training)", identity(corpora.stores[i]->train())});
    facts.push_back({key + " (validation)", identity(corpora.stores[i]->validation())});
  }
  return facts;
}

Corpora open_agreed_corpora(const Config& config, Mesh& mesh) {
  Corpora corpora = open_corpora(config.data);
  if (mesh.world() == 1) return corpora;
  Facts facts = facts_of_data(corpora);
  facts.push_back({"files of blocks (model.attention)", listed(block_file_hashes(config.model.resolved()))});
  mesh.check_agreement(
      {"data", "the ranks read different data", "Put the same files on every machine; their paths may differ"}, facts);
  return corpora;
}

void agree_on_checkpoint(const std::string& path, Mesh& mesh) {
  const std::string file = path + "/manifest.json";
  std::string found = "missing";
  std::error_code error;
  try {
    if (std::filesystem::exists(file, error)) found = str("hash ", hash_text(read_file(file)));
  } catch (const Error& e) {  // the ranks must also agree on the error
    found = e.what();
  }
  mesh.check_agreement({"checkpoint", "the ranks do not find the same checkpoint",
                        "The run's directory and the path in run.init_from must be in a folder that all ranks share"},
                       {{path, found}});
}

}  // namespace ring

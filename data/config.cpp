#include "data/config.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/check.h"
#include "core/fields.h"
#include "data/token_store.h"

namespace ring {

void MixtureEntry::fields(Fields& f) {
  f("path", path, "corpus (.h5) made by 'ringmaster data prepare'", non_empty(), rank_local());
  f("weight", weight, "share of the samples, relative to the other weights; a list changes it by tokens trained",
    in_range(0, 1e9), by_tokens(weights), docs_page("data.md#mixtures"));
  f("name", name, "name in metrics; empty: the file's name without its ending");
}

void MixtureEntry::validate(std::vector<SettingProblem>& errors) const {
  if (weight == 0)
    errors.push_back(
        "weight: is 0 and never changes. Remove the corpus, or give a schedule such as [[0, 0], [1e9, 1]]");
}

namespace {

// Returns one stage for each token count at which a weight changes.
std::vector<MixtureStage> stages_of(const std::vector<MixtureEntry>& mixture) {
  std::set<std::int64_t> begins{0};
  for (const MixtureEntry& entry : mixture)
    for (const TokenChange& c : entry.weights) begins.insert(c.tokens);
  std::vector<MixtureStage> stages;
  for (const std::int64_t begin : begins) {
    stages.push_back({begin, {}});
    for (const MixtureEntry& entry : mixture)
      stages.back().weights.push_back(value_at(entry.weights, begin, entry.weight));
  }
  return stages;
}

// Returns a unique name for each corpus: the name in the settings, else the file's name without extension. If that name
// is taken, appends _2, _3 and so on.
std::vector<std::string> names_of(const std::vector<MixtureEntry>& mixture) {
  std::vector<std::string> names;
  const auto taken = [&](const std::string& name) {
    return std::ranges::count(names, name) || std::ranges::count(mixture, name, &MixtureEntry::name);
  };
  for (const MixtureEntry& entry : mixture) {
    const std::string file = std::filesystem::path(entry.path).stem().string();
    std::string name = entry.name.empty() ? file : entry.name;
    for (int n = 2; entry.name.empty() && taken(name); ++n) name = str(file, "_", n);
    names.push_back(name);
  }
  return names;
}

}  // namespace

void PackingConfig::fields(Fields& f) {
  f("documents", documents, "true: tokens attend only within their document, and positions restart in each",
    docs_page("data.md#documents"));
  f("align", align, "with documents: each document starts at a multiple of this in its sample; 1 = no gaps",
    in_range(1, 1 << 30), docs_page("data.md#documents"));
  f("best_fit", best_fit,
    "documents packed at a time without cutting them, such as 1024; 0 = cut where a sample is full",
    in_range(0, 1 << 16), docs_page("data.md#documents"));
}

void PackingConfig::validate(std::vector<SettingProblem>& errors) const {
  if (!documents && align != 1) errors.push_back(str("align: ", align, " requires documents: true"));
}

void DataConfig::fields(Fields& f) {
  f("path", path, "corpus (.h5) made by 'ringmaster data prepare'; alternatively, set mixture",
    rank_local());  // ranks compare the contents of the corpora, not their paths
  f("mixture", mixture, "several corpora and their weights, instead of path", at_most_items(1024));
  f("validation_batches", validation_batches,
    "batches of train.batch_size sequences per evaluation, spread over the validation set; 0: all of it",
    in_range(0, (std::int64_t{1} << 31) - 1));
  f("prefetch", prefetch, "micro-batches that a background thread reads ahead; 0: read on demand", in_range(0, 1024),
    rank_local());
  f("packing", packing, "packing of documents into samples");
}

void DataConfig::validate(std::vector<SettingProblem>& errors) const {
  if (!path.empty() && !mixture.empty()) errors.push_back("path: give either path or mixture, not both");
  for (const MixtureEntry& entry : mixture)
    if (!entry.name.empty() && std::ranges::count(mixture, entry.name, &MixtureEntry::name) > 1)
      return errors.push_back("mixture: two corpora have the name " + entry.name);
  for (const MixtureStage& stage : stages_of(mixture))
    if (!mixture.empty() && std::ranges::all_of(stage.weights, [](double w) { return w == 0; }))
      return errors.push_back(str("mixture: from token ", stage.tokens, " on, all weights are 0"));
}

Corpora open_corpora(const DataConfig& config) {
  Corpora corpora;
  const auto add = [&](const std::string& path) {
    const auto store = TokenStore::open(path);
    if (corpora.stores.empty()) {
      corpora.tokenizer_hash = store->tokenizer_hash();
      corpora.vocab_size = store->vocab_size();
    } else if (store->tokenizer_hash() != corpora.tokenizer_hash) {
      fail("data.mixture: ", path, " was made with tokenizer ", store->tokenizer_hash(), " (", store->tokenizer_kind(),
           "), but ", corpora.stores.front()->path(), " with ", corpora.tokenizer_hash, " (",
           corpora.stores.front()->tokenizer_kind(), "); prepare both with the same tokenizer");
    }
    corpora.stores.push_back(store);
  };
  const std::vector<MixtureEntry> one{{.path = config.path}};
  const std::vector<MixtureEntry>& mixture = config.path.empty() ? config.mixture : one;
  for (const MixtureEntry& entry : mixture) add(entry.path);
  if (corpora.stores.empty())
    fail("data.path: expected a corpus here, or several under data.mixture, got none. Make one with 'ringmaster data ",
         "prepare'");
  corpora.names = names_of(mixture);
  corpora.mixture = stages_of(mixture);
  return corpora;
}

Corpora open_corpus(const std::string& path) {
  DataConfig config;
  config.path = path;
  return open_corpora(config);
}

void check_tokenizer(const Corpora& corpora, const std::string& wanted, const std::string& owner) {
  if (wanted.empty() || wanted == corpora.tokenizer_hash) return;
  fail("corpus ", corpora.stores.front()->path(), " was made with tokenizer ", corpora.tokenizer_hash, ", but ", owner,
       " with ", wanted, "; prepare the corpus again with 'ringmaster data prepare --tokenizer' and the tokenizer of ",
       owner);
}

}  // namespace ring

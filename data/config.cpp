#include "data/config.h"

#include "core/check.h"
#include "core/fields.h"
#include "data/token_store.h"

namespace ring {

void MixtureEntry::fields(Fields& f) {
  f("path", path, "a corpus (.h5) made by 'ringmaster data prepare'", non_empty(), rank_local());
  f("weight", weight, "share of the samples, relative to the other weights", in_range(1e-9, 1e9));
}

void PackingConfig::fields(Fields& f) {
  f("documents", documents,
    "tokens attend only inside of their document, and positions start anew in each; false: samples are stretches of "
    "the token stream, and attention crosses documents");
  f("align", align,
    "with documents: each starts at a multiple of this in its sample, the gap before it is padding; set it to the "
    "largest segment or block of dilated and block-sparse attention; 1 = no gaps",
    in_range(1, 1 << 30));
  f("best_fit", best_fit,
    "documents packed at a time, such as 1024, in the corpus's order: best-fit-decreasing bin packing cuts none that "
    "fits into a sample, and what is left of one is padding; with documents: false attention crosses them, targets "
    "do not; 0: documents are cut where a sample is full",
    in_range(0, 1 << 16));
}

void PackingConfig::validate(std::vector<std::string>& errors) const {
  if (!documents && align != 1) errors.push_back(str("align: ", align, " goes with documents: true"));
}

void DataConfig::fields(Fields& f) {
  f("path", path, "the corpus (.h5) made by 'ringmaster data prepare'; or give a mixture",
    rank_local());  // the corpora themselves are compared
  f("mixture", mixture, "several corpora and their weights, in place of path", at_most_items(1024));
  f("validation_batches", validation_batches,
    "batches of train.batch_size sequences per evaluation, spread over the validation set; 0: all of it",
    in_range(0, (std::int64_t{1} << 31) - 1));
  f("prefetch", prefetch, "micro-batches read ahead by a thread of their own; 0: read when asked for",
    in_range(0, 1024), rank_local());
  f("packing", packing, "documents in a sample");
}

void DataConfig::validate(std::vector<std::string>& errors) const {
  if (path.empty() && mixture.empty()) errors.push_back("path: give a corpus here, or several under mixture");
  if (!path.empty() && !mixture.empty()) errors.push_back("path: give either path or mixture, not both");
}

Corpora open_corpora(const DataConfig& config) {
  Corpora corpora;
  const auto add = [&](const std::string& path, double weight) {
    const auto store = TokenStore::open(path);
    if (corpora.stores.empty()) {
      corpora.tokenizer_hash = store->tokenizer_hash();
      corpora.vocab_size = store->vocab_size();
    } else if (store->tokenizer_hash() != corpora.tokenizer_hash) {
      fail("data.mixture: ", path, " was made with tokenizer ", store->tokenizer_hash(), " (", store->tokenizer_kind(),
           "), ", corpora.stores.front()->path(), " with ", corpora.tokenizer_hash, " (",
           corpora.stores.front()->tokenizer_kind(), "); prepare both with the same tokenizer");
    }
    corpora.stores.push_back(store);
    corpora.weights.push_back(weight);
  };
  if (!config.path.empty()) add(config.path, 1);
  for (const MixtureEntry& entry : config.mixture) add(entry.path, entry.weight);
  if (corpora.stores.empty()) fail("data.path: no corpus is given; make one with 'ringmaster data prepare'");
  return corpora;
}

Corpora open_corpus(const std::string& path) {
  DataConfig config;
  config.path = path;
  return open_corpora(config);
}

void check_tokenizer(const Corpora& corpora, const std::string& wanted, const std::string& owner) {
  if (wanted.empty() || wanted == corpora.tokenizer_hash) return;
  fail("corpus ", corpora.stores.front()->path(), " was made with tokenizer ", corpora.tokenizer_hash, ", ", owner,
       " with ", wanted, "; prepare the corpus again with 'ringmaster data prepare --tokenizer' and the tokenizer of ",
       owner);
}

}  // namespace ring

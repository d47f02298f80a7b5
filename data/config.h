#pragma once
// The section `data` of a training configuration.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/setting_problem.h"
#include "core/token_schedule.h"

namespace ring {

class Fields;
class TokenStore;

struct MixtureEntry {
  std::string path;
  double weight = 1;           // largest weight during the run
  TokenSchedule weights = {};  // weight as a function of the number of tokens before the sample; empty if constant
  std::string name = {};       // if empty, the file's name
  void fields(Fields& f);
  void validate(std::vector<SettingProblem>& errors) const;
};

struct PackingConfig {
  bool documents = false;
  std::int64_t align = 1;
  std::int64_t best_fit = 0;  // number of pieces packed at a time; 0 disables best-fit packing
  // Returns true if samples are padded rows (data/packing.h), false if they are windows of the token stream.
  bool in_rows() const { return align > 1 || best_fit > 0; }
  void fields(Fields& f);
  void validate(std::vector<SettingProblem>& errors) const;
};

struct DataConfig {
  std::string path;                   // a single corpus, instead of `mixture`
  std::vector<MixtureEntry> mixture;  // several corpora, instead of `path`
  std::int64_t validation_batches = 0;
  std::int64_t prefetch = 4;
  PackingConfig packing;
  void fields(Fields& f);
  void validate(std::vector<SettingProblem>& errors) const;
};

// Weights of all corpora once the run has used `tokens` tokens.
struct MixtureStage {
  std::int64_t tokens = 0;
  std::vector<double> weights;
};

// The opened corpora of a run; all have the same tokenizer.
struct Corpora {
  std::vector<std::shared_ptr<const TokenStore>> stores;
  std::vector<std::string> names;     // unique name of each corpus
  std::vector<MixtureStage> mixture;  // stages of the run, sorted by tokens; the first one starts at 0
  std::string tokenizer_hash;
  std::int64_t vocab_size = 0;  // size of the tokenizer's vocabulary
};

// Opens all corpora. Throws Error if a corpus is missing or damaged, or if two corpora have different tokenizers.
Corpora open_corpora(const DataConfig&);
Corpora open_corpus(const std::string& path);

// Throws Error, which names the corpus, both hashes and the remedy, if the tokenizer of the corpora differs from
// `wanted`, the hash of the tokenizer with which `owner` (e.g. "run runs/a") was made. An empty `wanted` matches any
// tokenizer.
void check_tokenizer(const Corpora&, const std::string& wanted, const std::string& owner);

}  // namespace ring

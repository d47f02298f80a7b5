#pragma once
// The data section of a training configuration.

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
  double weight = 1;           // the largest of the run
  TokenSchedule weights = {};  // of samples that begin at so many tokens; empty: all have `weight`
  std::string name = {};       // empty: its file's
  void fields(Fields& f);
  void validate(std::vector<SettingProblem>& errors) const;
};

struct PackingConfig {
  bool documents = false;
  std::int64_t align = 1;
  std::int64_t best_fit = 0;                                  // 0: not
  bool in_rows() const { return align > 1 || best_fit > 0; }  // of data/packing.h, with padding; else windows
  void fields(Fields& f);
  void validate(std::vector<SettingProblem>& errors) const;
};

struct DataConfig {
  std::string path;                   // one corpus, or
  std::vector<MixtureEntry> mixture;  // several
  std::int64_t validation_batches = 0;
  std::int64_t prefetch = 4;
  PackingConfig packing;
  void fields(Fields& f);
  void validate(std::vector<SettingProblem>& errors) const;
};

// The weights of all corpora from a token of the run on.
struct MixtureStage {
  std::int64_t tokens = 0;
  std::vector<double> weights;
};

// The opened corpora of a run: same tokenizer everywhere.
struct Corpora {
  std::vector<std::shared_ptr<const TokenStore>> stores;
  std::vector<std::string> names;     // of each, no two alike
  std::vector<MixtureStage> mixture;  // by ascending tokens, the first from 0 on
  std::string tokenizer_hash;
  std::int64_t vocab_size = 0;  // of the tokenizer
};

// Error: a corpus is missing or damaged, or two corpora have different tokenizers.
Corpora open_corpora(const DataConfig&);
Corpora open_corpus(const std::string& path);

// Error names the corpus, both values and the remedy. `wanted` is the tokenizer hash that a run or checkpoint was
// made with, `owner` says whose ("run runs/a"); an empty `wanted` matches anything.
void check_tokenizer(const Corpora&, const std::string& wanted, const std::string& owner);

}  // namespace ring

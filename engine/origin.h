#pragma once
// What a checkpoint says of the run that wrote it. Its manifest is hashed, so it is the measure for every other file of
// the run: what determines numbers is taken from here, or compared with it.

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "data/config.h"
#include "engine/memory_record.h"
#include "engine/run_directory.h"

namespace ring {

class Tuning;

// As a JSON object: settings, their hash, the program's version, what the run does with its memory, and the choices
// that were measured, if any: a run that goes on from it gives the same bits with those alone.
std::string checkpoint_metadata(const Config&, const MemoryRecord&, const Tuning*);
// Takes over the choices of a checkpoint; returns how many other ones of the same keys it replaced.
std::size_t adopt_choices(Tuning&, const std::string& metadata);

// What a run reads beside its settings, as text: tokenizer, tokens, files of blocks. One that was made anew must not
// slip under it.
std::string data_fingerprint(const Corpora&, const ModelConfig&);
// The same where only the tokenizer is known.
std::string tokenizer_fingerprint(const Tokenizer&);
inline constexpr const char* kFingerprintName = "data.fingerprint";  // of the state that holds it

// As checkpoint_metadata(), of weights alone that were imported from there.
std::string imported_metadata(const Config&, const std::string& from);

// The settings in a checkpoint's metadata. Error, which names the checkpoint: there are none, or some that this program
// does not know.
Config settings_in(const std::string& metadata, const std::string& checkpoint);

struct Origin {
  std::string checkpoint;   // its path
  Config config;            // resolved
  std::string config_hash;  // of the settings' text
  std::string memory;       // see to_json(MemoryRecord); empty: it says nothing of it
  std::string data;         // the fingerprint; empty: it says nothing of it, and anything fits
  std::string imported;     // the published weights that it was made from, and no training; empty: a run wrote it
  std::string tokenizer_hash() const;
};
// Error as settings_in().
Origin origin_of(const FoundCheckpoint&);
// The origin in a run's newest checkpoint whose manifest can be read, whatever its shards are like. Nothing: there is
// none, and `problem` says what is wrong with the newest.
std::optional<Origin> newest_origin(const RunDirectory&, std::string* problem = nullptr);

// Error: what the run holds was imported, so that there is no training to go on with.
void refuse_imported(const RunDirectory&, const Origin&);

// Settings that differ and matter: "key: old -> new". Threads and layouts only change how sums are rounded.
std::vector<std::string> changes_of_numbers(const Config& old_config, const Config& new_config);
std::vector<std::string> changes_of_rounding(const Config& old_config, const Config& new_config);

// Error, which blames the file: the tokenizer at `file` is not that of the checkpoint.
std::shared_ptr<const Tokenizer> load_tokenizer_of(const Origin&, const std::string& file);
// As load_tokenizer(), and the directory of a run. A run's tokenizer is compared with its newest checkpoint, also where
// its file is given.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& spec);
// Error: the files of blocks that the model reads are not those of the checkpoint.
void check_blocks(const Origin&);
// What is read now, by its fingerprint and the model's settings, and was not when the checkpoint was written:
// "what: old -> new".
std::vector<std::string> changes_of_data(const Origin&, const std::string& fingerprint, const ModelConfig&);
// Error, which lists the changes: the corpora are not those that the checkpoint was trained on. remedy: what to do
// then.
void check_data(const Origin&, const Corpora&, const std::string& remedy);

// The settings of a run that is to go on: its config.yaml, or where that is gone, with a warning, the copy in its
// newest checkpoint that can be read.
Config settings_to_go_on(const RunDirectory&, bool warn);
// Those of config.yaml. warn: this process warns where the file is not as the run wrote it, edited or damaged.
RunSettings settings_in_file(const RunDirectory&, bool warn);
// Whether config.yaml says that somebody allowed it to replace the settings of this checkpoint.
bool replaces(const RunSettings&, const Origin&);

}  // namespace ring

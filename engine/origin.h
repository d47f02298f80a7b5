#pragma once
// Facts in a checkpoint about the run that wrote it. The manifest is hashed, so it is trusted more than any other file
// of the run: everything that affects results is taken from the manifest or compared with it.

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "data/config.h"
#include "engine/memory_record.h"
#include "engine/run_directory.h"

namespace ring {

class Tuning;

// Returns a JSON object with the settings, their hash, the program's version, the run's memory choices, and its
// measured kernel choices, if any. A resumed run needs all of them for bit-identical results.
std::string checkpoint_metadata(const Config&, const MemoryRecord&, const Tuning*);
// Adopts the kernel choices of a checkpoint. Returns how many existing choices were replaced by different ones.
std::size_t adopt_kernel_choices(Tuning&, const std::string& metadata);

// Returns a string that identifies the data that a run reads (tokenizer, tokens, block files), so that a regenerated
// file is noticed.
std::string data_fingerprint(const Corpora&, const ModelConfig&);
// Same, if only the tokenizer is known.
std::string tokenizer_fingerprint(const Tokenizer&);
inline constexpr const char* kFingerprintName = "data.fingerprint";  // name of the state that stores the fingerprint

// Same as checkpoint_metadata(), for weights that were imported from `from` without training state.
std::string imported_metadata(const Config&, const std::string& from);

// Returns the settings in a checkpoint's metadata. Throws Error, which names the checkpoint, if there are none or if
// this program does not know some of them.
Config settings_in(const std::string& metadata, const std::string& checkpoint);

struct Origin {
  std::string checkpoint;   // path
  Config config;            // resolved
  std::string config_hash;  // hash of the settings' text
  std::string memory;       // see to_json(MemoryRecord); empty if the checkpoint has none
  std::string data;         // the fingerprint; empty if the checkpoint has none, which accepts any data
  std::string imported;     // path of the published weights that were imported; empty if a run wrote the checkpoint
  std::string tokenizer_hash() const;
};
// Throws Error like settings_in().
Origin origin_of(const FoundCheckpoint&);
// Returns the origin recorded in a run's newest checkpoint with a readable manifest, even if the checkpoint's shards
// are damaged. Returns nullopt if there is none; `problem` then says what is wrong with the newest checkpoint.
std::optional<Origin> newest_origin(const RunDirectory&, std::string* problem = nullptr);

// Throws Error if the run's weights were imported, so that there is no training to resume.
void refuse_imported(const RunDirectory&, const Origin&);

// Returns the changed settings that affect results by more than rounding, as "key: old -> new".
std::vector<std::string> changes_of_results(const Config& old_config, const Config& new_config);
// Same, for settings that only affect rounding, such as threads and layouts.
std::vector<std::string> changes_of_rounding(const Config& old_config, const Config& new_config);

// Throws Error, which names the file as the cause, if the tokenizer at `file` is not the checkpoint's tokenizer.
std::shared_ptr<const Tokenizer> load_tokenizer_of(const Origin&, const std::string& file);
// Same as load_tokenizer(), but also accepts a run directory. The tokenizer of a run is compared with that of its
// newest checkpoint, even if `spec` is the run's tokenizer file.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& spec);
// Throws Error if the block files that the model reads differ from those of the checkpoint.
void check_blocks(const Origin&);
// Returns what changed since the checkpoint was written, as "what: old -> new", given the fingerprint of the current
// data and the model's settings.
std::vector<std::string> changes_of_data(const Origin&, const std::string& fingerprint, const ModelConfig&);
// Throws Error, which lists the changes, if the corpora differ from those that the checkpoint was trained on. remedy:
// advice at the end of the message.
void check_data(const Origin&, const Corpora&, const std::string& remedy);

// Returns the settings of a run that is to be resumed: those of config.yaml or, with a warning if the file is missing,
// the copy in the newest readable checkpoint.
Config settings_to_go_on(const RunDirectory&, bool warn);
// Returns the settings of the run that a command with these settings resumes, without warnings; nullopt for a new run:
// if `fresh`, or if the run's directory does not exist.
std::optional<Config> settings_of_resumed(const Config&, bool fresh);
// Returns the settings in config.yaml. warn: this process warns if the file was edited or damaged since the run wrote
// it.
RunSettings settings_in_file(const RunDirectory&, bool warn);
// Returns true if a user allowed the settings in config.yaml to replace the settings of this checkpoint.
bool may_replace_settings(const RunSettings&, const Origin&);

}  // namespace ring

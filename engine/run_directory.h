#pragma once
// The main files of one run. docs/training.md lists all.
//
//   config.yaml      the resolved settings            log.txt          everything logged
//   tokenizer.rmt    the corpus's tokenizer           checkpoints/     see docs/checkpoints.md
//   metrics.jsonl    one JSON object per record       events.out.*     for TensorBoard
//   lock             held while a process trains      profile.json     of the latest --profile
//   failures.json    see checkpoint/failures.h        model.yaml       of imported weights: only the model section
//   memory.json      see engine/memory_record.h       tuning.yaml      see kernels/tuning.h
//   writers/         see checkpoint/writer_token.h    out_of_memory/   see engine/memory_record.h
//   generation_config.json, imported_tokenizer_config.json  of imported weights: see evaluate/kept_files.h
//   chat_template.json  chat format, if the corpus has conversations; see text/chat/format.h

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/load_chat_format.h"
#include "engine/config.h"
#include "text/tokenizer.h"

namespace ring {

// Contents of config.yaml. A run writes the file with its hash at the end, so that later edits are detected.
struct RunSettings {
  Config config;
  bool untouched = false;  // true if the file is unchanged since a run wrote it
  // Hashes of the settings in checkpoints that this file replaces with the user's permission (--allow-changes), so that
  // a resume accepts the difference. Empty if the file was edited.
  std::vector<std::string> replaced;
};

inline constexpr const char* kModelFile = "model.yaml";

// Returns the contents of config.yaml as a run writes them, with the hash at the end.
std::string settings_with_hash(const Config&);

class RunDirectory {
 public:
  explicit RunDirectory(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string config_file() const { return path_ + "/config.yaml"; }
  std::string tokenizer_file() const { return path_ + "/tokenizer.rmt"; }
  std::string profile_file() const { return path_ + "/profile.json"; }
  std::string failures_file() const { return path_ + "/failures.json"; }
  std::string memory_file() const { return path_ + "/memory.json"; }
  std::string metrics_file() const { return path_ + "/metrics.jsonl"; }
  std::string log_file() const { return path_ + "/log.txt"; }
  std::string chat_template_file() const { return path_ + "/" + kChatTemplateFile; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }

  bool has_config() const;  // true even if the file cannot be read
  // Throws Error if a new run would replace a config.yaml that no run wrote.
  void check_replaceable() const;
  bool exists() const;  // true if there is a config.yaml or a checkpoint
  // Throws Error if this is not a run or if config.yaml cannot be read; the message then says how to restore the file
  // from a checkpoint.
  RunSettings settings() const;
  Config config() const { return settings().config; }
  // Writes the run's files. Each file appears by a rename once it is complete. replaced: see RunSettings.
  // chat_template: empty if there is none.
  void create(const Config&, const Tokenizer&, const std::vector<std::string>& replaced = {},
              const std::string& chat_template = "") const;
  // Returns a command that restores config.yaml from `checkpoint`, or from the newest checkpoint; empty if there is
  // none.
  std::string restoring_command(const std::string& checkpoint = "") const;

  // Locks the run while the returned object lives. Throws Error if another process trains here.
  std::shared_ptr<void> lock() const;
  bool in_use() const;  // true if a process trains here; false if that cannot be determined

 private:
  std::string path_;
};

// Returns the run that a path belongs to: a run directory, or the run that contains this checkpoint; nullopt if
// neither.
std::optional<RunDirectory> run_containing(const std::string& path);
RunDirectory find_run(const std::string& path);  // throws Error, which lists the runs found, if there is none
// Throws Error if nothing exists at the path. The message says what was `wanted` and lists the runs found.
void check_exists(const std::string& path, const std::string& wanted = "a run or a checkpoint");
// Throws Error if the option's output exists and is a file that a run wrote, such as config.yaml or a file below
// checkpoints/.
void check_output_is_no_run_file(const std::string& option, const std::string& output);

}  // namespace ring

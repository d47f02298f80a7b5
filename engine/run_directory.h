#pragma once
// The files of one run.
//
//   config.yaml      the resolved settings            log.txt          everything logged
//   tokenizer.rmt    the corpus's tokenizer           checkpoints/     see docs/checkpoints.md
//   metrics.jsonl    one JSON object per record       events.out.*     for TensorBoard
//   lock             held while a process trains      profile.json     of the latest --profile
//   failures.json    see checkpoint/failures.h    model.yaml       of imported weights: the section model alone
//   chat_template.json  where the corpus has conversations: how they are written, see text/chat/format.h

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/load_chat_format.h"
#include "engine/config.h"
#include "text/tokenizer.h"

namespace ring {

// What config.yaml says. A run ends the file with its hash, so that a change by anything else shows.
struct RunSettings {
  Config config;
  bool untouched = false;  // since a run wrote it
  // Hashes of the settings that these replaced where somebody allowed it, as checkpoints name them; only in an
  // untouched file.
  std::vector<std::string> replaced;
};

inline constexpr const char* kModelFile = "model.yaml";

// config.yaml as a run writes it, with the hash that says so.
std::string sealed_settings(const Config&);

class RunDirectory {
 public:
  explicit RunDirectory(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string config_file() const { return path_ + "/config.yaml"; }
  std::string tokenizer_file() const { return path_ + "/tokenizer.rmt"; }
  std::string trace_file() const { return path_ + "/profile.json"; }
  std::string failures_file() const { return path_ + "/failures.json"; }
  std::string memory_file() const { return path_ + "/memory.json"; }
  std::string metrics_file() const { return path_ + "/metrics.jsonl"; }
  std::string log_file() const { return path_ + "/log.txt"; }
  std::string chat_template_file() const { return path_ + "/" + kChatTemplateFile; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }

  bool has_config() const;  // also one that cannot be read
  bool exists() const;      // holds a run's config, or a checkpoint
  // Error: not a run, or its config.yaml cannot be read; how to restore it from a checkpoint.
  RunSettings settings() const;
  Config config() const { return settings().config; }
  // Writes the files, each by rename. chat_template: empty where there is none.
  void create(const Config&, const Tokenizer&, const std::vector<std::string>& replaced = {},
              const std::string& chat_template = "") const;
  // A command that writes config.yaml again from the checkpoint, or from the newest one; empty: there is none.
  std::string restoring_command(const std::string& checkpoint = "") const;

  // Exclusive while the object lives. Error: another process trains here.
  std::shared_ptr<void> lock() const;
  bool in_use() const;  // a process trains here; false also where that cannot be seen

 private:
  std::string path_;
};

// The run that a path means: a run directory, or that around a checkpoint. Nothing: neither.
std::optional<RunDirectory> run_around(const std::string& path);
RunDirectory find_run(const std::string& path);  // Error: there is none; which ones there are
// Error: nothing is at the path, in place of what is wanted; which runs there are.
void refuse_missing(const std::string& path, const std::string& wanted = "a run or a checkpoint of one");

}  // namespace ring

#pragma once
// The files of one run.
//
//   config.yaml      the resolved settings            log.txt          everything logged
//   tokenizer.rmt    the corpus's tokenizer           checkpoints/     see docs/fault_tolerance.md
//   metrics.jsonl    one JSON object per record       events.out.*     for TensorBoard
//   lock             held while a process trains      profile.json     of the latest --profile

#include <memory>
#include <string>

#include "data/tokenizer.h"
#include "trainer/config.h"

namespace ring {

class RunDirectory {
 public:
  explicit RunDirectory(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string config_file() const { return path_ + "/config.yaml"; }
  std::string tokenizer_file() const { return path_ + "/tokenizer.rmt"; }
  std::string metrics_file() const { return path_ + "/metrics.jsonl"; }
  std::string trace_file() const { return path_ + "/profile.json"; }
  std::string log_file() const { return path_ + "/log.txt"; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }

  bool exists() const;                                 // holds a run's config
  Config config() const;                               // Error: not a run
  void create(const Config&, const Tokenizer&) const;  // writes both files, each by rename

  // Exclusive while the object lives. Error: another process trains here.
  std::shared_ptr<void> lock() const;

 private:
  std::string path_;
};

// The run that a path means: a run directory, or a checkpoint inside of one. Error: neither.
RunDirectory find_run(const std::string& path);

}  // namespace ring

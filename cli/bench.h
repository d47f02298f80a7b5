#pragma once
// Options and files that the subcommands of `ringmaster bench` share.

#include <string>
#include <vector>

#include "cli/command.h"
#include "comm/agree.h"
#include "data/output_file.h"
#include "engine/config.h"

namespace ring {

// Each function adds a subcommand to `bench`.
void add_bench_step(Command bench);
void add_bench_ops(Command bench);  // adds bench ops and bench floor
void add_bench_products(Command bench);
void add_bench_attention(Command bench);
void add_bench_blocks(Command bench);
void add_bench_context(Command bench);
void add_bench_calibrate(Command bench);
void add_bench_links(Command bench);

// A settings file on the command line. The corpus in its settings is not read.
struct BenchConfig {
  std::string file;
  std::vector<std::string> overrides;
  void add_to(Command command);
  Config load() const;
  std::string name() const;  // name of the shape: the file's name without folder and extension
};

// Returns the options that must be the same on all ranks of `launch`. ignored: options that may differ, because they
// only affect rank 0's output.
Facts facts_of_options(Command command, const std::vector<std::string>& ignored);

// A file to which lines are appended; a new file gets the header immediately. If the path is empty, nothing is written.
class CsvFile {
 public:
  // Throws Error if the file cannot be written or has different columns.
  CsvFile(const std::string& path, const std::string& header);
  void add(const std::string& line);  // throws Error if the file cannot be written

 private:
  std::string path_;
  LineFile out_;
};

}  // namespace ring

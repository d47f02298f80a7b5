#pragma once
// What the subcommands of `ringmaster bench` share.

#include <string>
#include <vector>

#include "cli/command.h"
#include "comm/agree.h"
#include "data/output_file.h"
#include "engine/config.h"

namespace ring {

// Each adds its subcommand to `bench`.
void add_bench_step(Command bench);
void add_bench_ops(Command bench);  // and bench floor
void add_bench_products(Command bench);
void add_bench_attention(Command bench);
void add_bench_blocks(Command bench);
void add_bench_context(Command bench);
void add_bench_calibrate(Command bench);

// A settings file on the command line, whose corpus is not read.
struct BenchConfig {
  std::string file;
  std::vector<std::string> overrides;
  void add_to(Command command);
  Config load() const;
  std::string name() const;  // of the shape: the file's, without folder and extension
};

// What the command line says, for the ranks of `launch` to compare. own: options of which each rank may have its own,
// because only what rank 0 shows depends on them.
Facts facts_of(Command command, const std::vector<std::string>& own);

// A file that lines are appended to; a new one gets the header at once. No path: nothing is written.
class CsvFile {
 public:
  CsvFile(const std::string& path, const std::string& header);  // Error: it cannot be written, or holds other columns
  void add(const std::string& line);                            // Error: it cannot be written

 private:
  std::string path_;
  LineFile out_;
};

}  // namespace ring

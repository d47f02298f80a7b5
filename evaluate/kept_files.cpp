#include "evaluate/kept_files.h"

#include <filesystem>

#include "checkpoint/files.h"
#include "core/byte_order_mark.h"
#include "core/check.h"
#include "core/files.h"
#include "core/io_error.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxKeptBytes = 16 << 20;

std::string kept_text_in(const fs::path& folder, const char* file) {
  std::error_code error;
  const fs::path path = folder / file;
  return fs::exists(path, error) ? std::string(without_byte_order_marks(read_text(path, kMaxKeptBytes))) : "";
}

bool have_same_tokenizer(const RunDirectory& run, const std::string& checkpoint) {
  const std::optional<RunDirectory> source = run_containing(checkpoint);
  std::error_code error;
  return source && fs::exists(source->tokenizer_file(), error) && fs::exists(run.tokenizer_file(), error) &&
         read_file(source->tokenizer_file()) == read_file(run.tokenizer_file());
}

void replace_or_remove(const std::string& file, const std::string& text) {
  if (!text.empty()) return replace_text(file, text);
  std::error_code error;
  fs::remove(file, error);  // removes a file left by an earlier run
  if (error) fail("cannot remove ", file, ": ", io_error_text(error.value()));
}

}  // namespace

std::string kept_text_of(const std::string& checkpoint, const char* file) {
  if (std::string beside = kept_text_in(checkpoint, file); !beside.empty()) return beside;
  const std::optional<RunDirectory> run = run_containing(checkpoint);
  return run ? kept_text_in(run->path(), file) : "";
}

void copy_kept_files(const RunDirectory& run, const std::string& init_from) {
  const auto copy = [&](const char* file, bool keep) {
    replace_or_remove(run.path() + "/" + file, keep ? kept_text_of(init_from, file) : "");
  };
  copy(kGenerationFile, !init_from.empty());
  copy(kTokenizerConfigFile, !init_from.empty() && have_same_tokenizer(run, init_from));
}

}  // namespace ring

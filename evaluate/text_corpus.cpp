#include "evaluate/text_corpus.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "core/check.h"
#include "core/files.h"
#include "core/io_error.h"
#include "data/load_chat_format.h"
#include "data/output_file.h"

namespace ring {
namespace {

// Creates a temporary folder; the destructor removes it with its contents.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = temporary_folder() + "/ringmaster-text-XXXXXX";
    if (!::mkdtemp(name.data()))
      fail("cannot create a folder for temporary files in ", temporary_folder(), ": ", io_error_text(errno),
           ". Set TMPDIR to a writable folder");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string file(const char* name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace

Corpora corpus_of_text(PrepareOptions options, const Tokenizer& tokenizer, const chat::Format& chats) {
  const TemporaryFolder folder;
  options.tokenizer = folder.file("tokenizer.rmt");
  options.output = folder.file("text.h5");
  options.validation_inputs.clear();
  options.validation_fraction = 0;
  save_tokenizer(tokenizer, options.tokenizer);
  // prepare_corpus() looks for the chat format beside the tokenizer.
  if (!chats.source.empty()) write_whole(folder.file(kChatTemplateFile), chats.to_json());
  log_warnings(prepare_corpus(options));
  return open_corpus(options.output);
}

}  // namespace ring

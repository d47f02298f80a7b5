#include "data/import_tokens.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "data/megatron.h"

namespace ring {
namespace {

// Counts the bytes of text that decode() would write for tokens.
class TextBytes {
 public:
  explicit TextBytes(const Tokenizer& t) : of_(static_cast<std::size_t>(t.vocab_size())), blank_(t.blank_in_front()) {
    starts_blank_.resize(of_.size());
    for (std::size_t id = 0; id < of_.size(); ++id) {
      const std::string bytes = t.bytes_of(static_cast<std::int32_t>(id));
      of_[id] = static_cast<std::uint32_t>(bytes.size());
      starts_blank_[id] = bytes.starts_with(' ');
    }
  }
  // begun (in and out): true if the document has text so far. The space that encode() added before the document's first
  // text is not counted.
  std::uint64_t of(std::span<const std::int32_t> tokens, bool& begun) const {
    std::uint64_t bytes = 0;
    for (const std::int32_t id : tokens) {
      const auto i = static_cast<std::size_t>(id);
      bytes += of_[i];
      if (!begun && of_[i] > 0) bytes -= blank_ && starts_blank_[i];
      begun |= of_[i] > 0;
    }
    return bytes;
  }

 private:
  std::vector<std::uint32_t> of_;
  std::vector<bool> starts_blank_;
  bool blank_;
};

struct Progress {
  PrepareProgress now;
  std::function<void(const PrepareProgress&)> show;  // called with `now`; may be null
};

class Importer final : public MegatronDataset::Sink {
 public:
  Importer(const PrepareOptions& options, const Tokenizer& tokenizer, TokenStoreWriter& writer, PrepareReport& report,
           Progress progress)
      : options_(options),
        text_(tokenizer),
        end_(tokenizer.end_of_text()),
        writer_(writer),
        report_(report),
        progress_(std::move(progress)) {}

  // split: the split of all documents in the file; nullopt if a hash selects a split for each document. token_bytes:
  // bytes per token in the file.
  void start_file(const std::string& name, std::optional<Split> split, std::uint64_t token_bytes) {
    name_ = name;
    token_bytes_ = token_bytes;
    file_split_ = split;
    document_ = 0;
  }

  void add_part(std::span<const std::int32_t> tokens) override {
    if (length_ == 0) {
      text_begun_ = false;
      split_ = file_split_ ? *file_split_ : hashed_split(options_, name_, document_);
      writer_.begin_document(split_);
    }
    writer_.append(split_, tokens);
    const std::uint64_t bytes = text_.of(tokens, text_begun_);
    writer_.add_text_bytes(split_, bytes);
    report_.bytes += bytes;
    length_ += tokens.size();
    last_ = tokens.back();
    progress_.now.bytes += tokens.size() * token_bytes_;
    progress_.now.tokens += tokens.size();
    if (progress_.show) progress_.show(progress_.now);
  }

  void end() override {
    if (end_ && last_ != *end_) {
      writer_.append(split_, std::array{*end_});
      ++length_;
      ++report_.ends_added;
    }
    report_.longest = std::max(report_.longest, length_);
    length_ = 0;
    ++document_;
  }

 private:
  const PrepareOptions& options_;
  const TextBytes text_;
  const std::optional<std::int32_t> end_;
  TokenStoreWriter& writer_;
  PrepareReport& report_;
  Progress progress_;
  std::string name_;
  std::optional<Split> file_split_;
  std::uint64_t token_bytes_ = 0;
  // Index of the document in its file; number of the document's tokens so far.
  std::uint64_t document_ = 0, length_ = 0;
  Split split_ = Split::train;
  std::int32_t last_ = 0;
  bool text_begun_ = false;
};

}  // namespace

void import_tokens(const PreparePlan& plan, const PrepareOptions& options, TokenStoreWriter& writer,
                   PrepareReport& report, const std::function<void(const PrepareProgress&)>& progress) {
  const auto vocab_size = static_cast<std::uint64_t>(plan.tokenizer->vocab_size());
  Importer importer(options, *plan.tokenizer, writer, report, {{0, plan.bytes, 0}, progress});
  for (std::size_t i = 0; i < plan.files.size(); ++i) {
    const MegatronDataset set(megatron_prefix(plan.files[i].path));
    std::optional<Split> split;
    if (plan.split == SplitKind::files) split = plan.validation_from[i] == 0 ? Split::validation : Split::train;
    importer.start_file(plan.files[i].name, split, set.token_bytes());
    set.read(vocab_size, options.tokenizer, importer);
  }
}

}  // namespace ring

#include "data/prepare.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/check.h"
#include "core/counted.h"
#include "core/cpu/thread_pool.h"
#include "data/documents.h"
#include "data/encode_job.h"
#include "data/import_tokens.h"
#include "data/ordered_queue.h"
#include "data/prepare_plan.h"
#include "data/token_store.h"
#include "text/utf8.h"

namespace ring {
namespace {

constexpr std::size_t kJobBytes = std::size_t{1} << 19;

using Queue = OrderedQueue<EncodeJob, EncodeResult>;

struct Stopped {};  // thrown in the reader after the queue was stopped

// Collects documents into jobs of about kJobBytes.
class JobBuilder final : public DocumentSink {
 public:
  JobBuilder(const PrepareOptions& options, SplitKind split, const Tokenizer& tokenizer, Queue& queue)
      : options_(options), split_kind_(split), tokenizer_(tokenizer), queue_(queue) {}

  void start_file(std::size_t index, const std::string& name, Split split) {
    file_ = index;
    name_ = name;
    document_ = 0;
    tail_split_ = split;
  }
  void start_validation() { tail_split_ = Split::validation; }

  void add_part(std::string_view text, bool counts) override {
    if (!open_) {
      open_ = true;
      first_ = true;
      split_ = choose_split();
      begin_ = job_.text.size();
    } else if (counts != counts_ && job_.text.size() > begin_) {
      add_piece(job_.text.size(), false);
      begin_ = job_.text.size();
    }
    counts_ = counts;
    job_.text += text;
    if (job_.text.size() >= kJobBytes) cut();
  }

  void end() override { close_document(true); }

  // Ends the open document's piece. If not `complete`, the document is divided between the splits and does not get an
  // end-of-text token here.
  void close_document(bool complete) {
    if (!open_) return;
    add_piece(job_.text.size(), complete);
    open_ = false;
    ++document_;
    if (job_.text.size() >= kJobBytes) push();
  }

  void finish() {
    if (!job_.pieces.empty()) push();
  }

 private:
  Split choose_split() const {
    if (split_kind_ != SplitKind::hash) return tail_split_;
    return hashed_split(options_, name_, options_.members.pairs() ? document_ / 2 : document_);  // keeps pairs together
  }

  void add_piece(std::size_t end, bool last) {
    job_.pieces.push_back({begin_, end, file_, end - begin_, split_, first_, last, counts_});
    first_ = false;
  }

  // Called for a long open document: pushes the part that can be encoded separately.
  void cut() {
    const std::string_view open = std::string_view(job_.text).substr(begin_);
    std::size_t cut = tokenizer_.safe_prefix(open);
    if (cut == 0) cut = open.size() < kJobBytes ? 0 : utf8::floor_boundary(open, open.size() - 4);
    std::string rest(open.substr(cut));
    if (cut > 0) add_piece(begin_ + cut, false);
    job_.text.resize(begin_ + cut);
    if (!job_.pieces.empty()) push();
    job_.text = std::move(rest);
    begin_ = 0;
  }

  void push() {
    if (!queue_.push(std::exchange(job_, EncodeJob{}))) throw Stopped{};
    job_.text.reserve(kJobBytes + (kJobBytes >> 2));
  }

  const PrepareOptions& options_;
  SplitKind split_kind_;
  const Tokenizer& tokenizer_;
  Queue& queue_;
  EncodeJob job_;
  std::string name_;
  std::size_t file_ = 0, begin_ = 0;
  std::uint64_t document_ = 0;
  bool open_ = false, first_ = false, counts_ = true;
  Split split_ = Split::train, tail_split_ = Split::train;
};

// Reads a plain file in which the bytes from `offset` on are validation text.
void read_divided(const TextFile& file, const DocumentRule& rule, std::uint64_t offset, JobBuilder& builder) {
  DocumentCutter cutter(rule, builder, file.as_text);
  const auto feed = [&](std::string_view block) { cutter.add_block(block); };
  read_blocks(file, 0, offset, feed);
  builder.close_document(false);
  builder.start_validation();
  read_blocks(file, offset, file.size, feed);
  cutter.on_end_of_file();
}

void read_all(const PreparePlan& plan, const PrepareOptions& options, JobBuilder& builder, Queue& queue) {
  try {
    const DocumentRule rule = parse_document_rule(options.document);
    for (std::size_t i = 0; i < plan.files.size(); ++i) {
      const TextFile& file = plan.files[i];
      const std::uint64_t validation = plan.validation_from[i];
      builder.start_file(i, file.name, validation == 0 ? Split::validation : Split::train);
      if (validation > 0 && validation != kNoValidation)
        read_divided(file, rule, validation, builder);
      else
        read_documents(file, rule, builder);
    }
    builder.finish();
    queue.close();
  } catch (const Stopped&) {
  } catch (...) {
    queue.stop(std::current_exception());
  }
}

void encode_all(Queue& queue, const Tokenizer& tokenizer, const DocumentFrame& frame) {
  try {
    const auto encoder = tokenizer.encoder();
    while (auto job = queue.next_job()) queue.finish(job->first, frame.encode(job->second, *encoder));
  } catch (...) {
    queue.stop(std::current_exception());
  }
}

// Threads of a preparation. The destructor stops the queue, which has no effect after the last result was taken, and
// joins the threads.
class Workers {
 public:
  explicit Workers(Queue& queue) : queue_(queue) {}
  ~Workers() {
    queue_.stop();
    for (std::thread& t : threads_) t.join();
  }
  template <class F>
  void start(F&& work) {
    threads_.emplace_back(std::forward<F>(work));
  }

 private:
  Queue& queue_;
  std::vector<std::thread> threads_;
};

void write_result(const EncodeResult& r, TokenStoreWriter& writer) {
  for (const EncodePiece& piece : r.pieces) {
    if (piece.first) writer.begin_document(piece.split);
    writer.append(piece.split, std::span(r.tokens).subspan(piece.begin, piece.end - piece.begin), piece.counts);
    writer.add_text_bytes(piece.split, piece.text_bytes, piece.counts);
  }
}

// Collects statistics of documents from their pieces, added in order.
class Census {
 public:
  explicit Census(PrepareReport& report) : report_(report) {}
  void add(const EncodePiece& p) {
    if (p.first) close();
    file_ = p.file;
    length_ += p.end - p.begin;
    if (p.counts) targets_ += p.end - p.begin;
  }
  void close() {
    report_.longest = std::max(report_.longest, length_);
    if (length_ > 0 && targets_ == 0 && report_.without_targets++ == 0) first_without_ = file_;
    length_ = targets_ = 0;
  }
  std::size_t first_without() const { return first_without_; }  // first file (index) with a document without targets

 private:
  PrepareReport& report_;
  // Number of tokens of the open document, and of those that count as targets.
  std::uint64_t length_ = 0, targets_ = 0;
  std::size_t file_ = 0, first_without_ = 0;
};

// Returns the advice to give if a split got no document.
const char* remedy_for_empty_split(const PreparePlan& plan) {
  const std::vector<TextFile>& files = plan.files;
  if (plan.tokens) return "Give a larger fraction, 0 (no validation), or a separate data set (--validation-input)";
  if (std::ranges::any_of(files, &RecordMembers::any, &TextFile::members))
    return "Give a larger fraction, 0 (no validation), or separate records (--validation-input)";
  if (!std::ranges::all_of(files, &TextFile::plain))
    return "Give smaller documents (--document line or blank-line), separate files (--validation-input), a larger "
           "fraction or 0 (no validation), or unpack the files and use --split tail";
  return "Use --split tail, a different fraction (0: no validation), or smaller documents (--document)";
}

void check_result(const PrepareOptions& o, const PreparePlan& plan, const TokenStoreWriter& writer) {
  const std::uint64_t train = writer.tokens(Split::train), validation = writer.tokens(Split::validation);
  if (train + validation == 0)
    fail("the input has no text that the tokenizer can encode: nothing was written to ", o.output);
  const std::uint64_t documents = writer.documents(Split::train) + writer.documents(Split::validation);
  const auto empty = [&](const char* which) {
    fail("the ", which, " split of ", o.output, " is empty: of ",
         counted(static_cast<std::int64_t>(documents), "document"), ", none fell into it with --validation-fraction ",
         o.validation_fraction, ". ", remedy_for_empty_split(plan));
  };
  if (!o.validation_inputs.empty() && (train == 0 || validation == 0))
    fail("the files of --", train == 0 ? "input" : "validation-input",
         " have no text that the tokenizer can encode: nothing was written to ", o.output);
  if (train == 0) empty("training");
  if (validation == 0 && o.validation_fraction > 0) empty("validation");
}

void encode_texts(const PreparePlan& plan, const PrepareOptions& options, TokenStoreWriter& writer,
                  PrepareReport& report, const std::function<void(const PrepareProgress&)>& progress) {
  const Tokenizer& tokenizer = *plan.tokenizer;
  const DocumentFrame frame(tokenizer, plan.shape);
  const int threads = options.threads > 0 ? options.threads : default_threads();
  Queue queue(static_cast<std::size_t>(2 * threads + 2));
  JobBuilder builder(options, plan.split, tokenizer, queue);
  Workers workers(queue);
  workers.start([&] { read_all(plan, options, builder, queue); });
  for (int i = 0; i < threads; ++i) workers.start([&] { encode_all(queue, tokenizer, frame); });

  const bool plain = std::ranges::all_of(plan.files, &TextFile::plain);
  PrepareProgress now{0, plain ? plan.bytes : 0, 0};
  std::size_t bad = plan.files.size();
  Census census(report);
  while (const auto result = queue.take()) {
    write_result(*result, writer);
    for (const EncodePiece& p : result->pieces) census.add(p);
    report.encode += result->report;
    bad = std::min(bad, result->first_bad_file);
    now.bytes += result->text_bytes;
    now.tokens = writer.tokens(Split::train) + writer.tokens(Split::validation);
    if (progress) progress(now);
  }
  census.close();
  if (bad < plan.files.size()) report.first_bad_file = plan.files[bad].path;
  if (report.without_targets > 0) report.first_file_without = plan.files[census.first_without()].path;
  report.bytes = now.bytes;
}

}  // namespace

PrepareReport prepare_corpus(const PrepareOptions& asked, const std::function<void(const PrepareProgress&)>& progress) {
  const auto started = std::chrono::steady_clock::now();
  PrepareOptions options = asked;
  const PreparePlan plan = plan_preparation(options);
  TokenStoreWriter writer(options.output, plan.tokenizer->vocab_size(), options.members.masked());
  PrepareReport report;
  if (plan.tokens)
    import_tokens(plan, options, writer, report, progress);
  else
    encode_texts(plan, options, writer, report, progress);
  check_result(options, plan, writer);
  writer.finish(*plan.tokenizer, plan.summary(options), plan.chat_format);

  for (std::size_t i = 0; i < 2; ++i) {
    report.tokens[i] = writer.tokens(static_cast<Split>(i));
    report.documents[i] = writer.documents(static_cast<Split>(i));
    report.targets[i] = writer.targets(static_cast<Split>(i));
  }
  report.files = plan.files.size();
  report.tokenizer = plan.tokenizer;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  return report;
}

}  // namespace ring

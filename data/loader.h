#pragma once
// Training batches and validation batches. Sample g of a run is a window of T + 1 tokens whose position is a pure
// function of (seed, g).
//
// A corpus of n tokens is split into windows that share one border token, so that every token except the first is a
// target. Each epoch visits the windows in a different order (data/permutation.h) and shifts all borders by a different
// phase in [0, T). Several corpora are mixed by data/mixture.h. The state of a loader is the number of the next sample,
// so that seeking is O(1). The number of ranks only determines which rank reads which sample.
//
// * Packed documents: samples are the same windows, split at document starts; no target crosses a split. With gaps
//   between documents (align > 1) or best-fit packing, a sample is a row of data/packing.h, and epochs differ only in
//   the order of rows.
// * Shorter sequences: samples are the same, but split at multiples of a length that may change from batch to batch.
//   Targets stay the same.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "data/config.h"
#include "data/mixture.h"
#include "data/packing.h"

namespace ring {

class TokenSplit;
class TokenStore;
enum class Split : std::uint8_t;

// A row whose tokens are read in parts, because it is too long for memory. Thread-safe.
class UnreadRow {
 public:
  UnreadRow() = default;  // a row without tokens
  // A row with the tokens [begin, end) of a split of the store; token `end` is the last target.
  UnreadRow(std::shared_ptr<const TokenStore> store, const TokenSplit& split, std::uint64_t begin, std::uint64_t end)
      : store_(std::move(store)), split_(&split), begin_(begin), end_(end) {}
  // Reads inputs [first, first + inputs.size()) and their targets, as in Batch. Positions after the last token have
  // input 0 and no target. Throws the errors of TokenSplit::read().
  void read(std::int64_t first, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;

 private:
  std::shared_ptr<const TokenStore> store_;
  const TokenSplit* split_ = nullptr;
  std::uint64_t begin_ = 0, end_ = 0;
};

// `rows` windows of `context` tokens, row-major.
struct Batch {
  // [rows * context]. Targets of -100 are ignored, e.g. those of tokens that the loss mask excludes.
  std::vector<std::int32_t> inputs, targets;
  // If set, inputs and targets of the batch's only row are empty, and are read from here instead.
  std::shared_ptr<const UnreadRow> unread;
  std::vector<std::int64_t> sample_indices;  // [rows]; -1 for an empty row that pads the batch
  std::vector<std::int32_t> sources;         // [rows]: index of the corpus; -1 for an empty row
  std::int64_t valid_targets = 0;
  // Set only with packed documents or shorter sequences. positions [rows * context]: position in the document or
  // sequence. starts, lengths [sequences]: index of the sequence's first token in the batch, and number of tokens.
  // Tokens outside all sequences are padding.
  std::vector<std::int32_t> positions, starts, lengths;
  // Set only for packed rows of pairs of answers. answers [rows * context]: for each token, the index of its document
  // in `documents`, or -1. documents: numbers of the documents in their split; 2i and 2i + 1 are the chosen and the
  // rejected answer of a pair.
  std::vector<std::int32_t> answers;
  std::vector<std::uint64_t> documents;
};

// Returns the number of targets of each corpus.
std::vector<std::int64_t> count_targets_by_source(const Batch&, std::size_t corpora);

struct LoaderOptions {
  std::int64_t context = 0;  // T: tokens per row
  std::int64_t rows = 1;     // rows per micro-batch on this rank
  std::uint64_t seed = 0;
  int rank = 0, world = 1;
  std::int64_t prefetch = 4;  // number of micro-batches that are read ahead; 0 means no thread
  PackingConfig packing = {};
  std::int64_t sequence = 0;  // tokens per sequence; 0 means that each row is one sequence
  // If true, a batch with a single row that is one sequence and has no loss mask does not contain the row's tokens:
  // they are read later, in parts (UnreadRow).
  bool unread = false;
  bool packs() const { return packing.documents || sequence > 0; }
};

// Position of a sample in its corpus.
struct SampleLocation {
  std::uint32_t corpus;
  std::uint64_t begin, end;  // [begin, end): tokens of a window; token `end` is the last target
  std::uint64_t row = 0;     // packed rows only: row number, used instead of begin and end
};

// Maps sample numbers to positions, as a pure function. With packed rows, the corpora must outlive this object.
class SampleMap {
 public:
  // Throws Error if a corpus has fewer than context + 1 training tokens; with packed rows, one token suffices.
  SampleMap(const Corpora&, std::int64_t context, std::uint64_t seed, const PackingConfig& packing = {});
  SampleLocation operator()(std::uint64_t sample) const;
  std::uint64_t windows(std::size_t corpus) const { return windows_[corpus]; }  // number of windows or rows per epoch
  // Returns the packed rows of each corpus; empty if samples are windows.
  const std::vector<std::unique_ptr<PackedRows>>& rows() const { return rows_; }

 private:
  std::vector<std::uint64_t> tokens_, windows_;
  std::vector<std::unique_ptr<PackedRows>> rows_;
  std::uint64_t context_, seed_;
  MixtureSchedule mixture_;
};

// Micro-batch m of the run consists of samples [m * rows * world, (m + 1) * rows * world); rank r gets the r-th group
// of `rows` samples. So the samples of an optimizer step do not depend on how they are divided into rows, ranks and
// gradient accumulation. For use by one thread.
class Loader {
 public:
  Loader(Corpora corpora, const LoaderOptions& options, std::uint64_t first_sample = 0);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  Batch next();                            // throws Error if the corpus is damaged
  void seek(std::uint64_t sample);         // sets the first sample, over all ranks, of the next micro-batch
  void set_rows(std::int64_t rows);        // sets LoaderOptions::rows of later batches
  void set_sequence(std::int64_t tokens);  // sets LoaderOptions::sequence of later batches
  std::uint64_t next_sample() const { return next_sample_; }  // the loader's state: seek() to this number resumes
  const SampleMap& map() const { return map_; }
  const Corpora& corpora() const { return corpora_; }
  const LoaderOptions& options() const { return options_; }

 private:
  Batch read(std::uint64_t first) const;
  void set_option(std::int64_t LoaderOptions::*option, std::int64_t value);
  void start_thread();
  void stop_thread();
  void read_ahead();
  std::uint64_t samples_per_batch() const { return static_cast<std::uint64_t>(options_.rows * options_.world); }

  Corpora corpora_;
  LoaderOptions options_;
  SampleMap map_;
  std::uint64_t next_sample_ = 0;

  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::uint64_t, Batch>> ready_;  // batches with their first samples, in order
  std::uint64_t wanted_ = 0;                           // the reader thread skips samples before this one
  bool stopping_ = false;
};

// The validation (or training) splits of all corpora, split into windows or packed into rows, in order, without
// overlapping targets. The last window of a split may be shorter and is padded with targets of -100. All ranks have the
// same number of batches.
class ValidationSet {
 public:
  // windows: number of windows, spread evenly, the same for any number of ranks; 0 uses all windows. Throws Error if no
  // corpus has such a split with at least two tokens.
  ValidationSet(Corpora corpora, const LoaderOptions& options, std::int64_t windows = 0);
  ValidationSet(Corpora corpora, const LoaderOptions& options, std::int64_t windows, Split split);
  std::int64_t batches() const { return batches_; }   // number of batches per rank
  std::int64_t windows() const { return selected_; }  // number of windows over all ranks
  const LoaderOptions& options() const { return options_; }
  std::size_t corpora() const { return corpora_.stores.size(); }
  Batch batch(std::int64_t index) const;  // returns this rank's batch
  // Returns the splits' text bytes per target token, to convert loss to bits per byte; 1 if there is no text.
  double bytes_per_token() const;

 private:
  const TokenSplit& split_of(std::size_t corpus) const;
  SampleLocation find_window(std::int64_t window) const;

  Corpora corpora_;
  LoaderOptions options_;
  Split split_;
  std::vector<std::unique_ptr<PackedRows>> rows_;
  std::vector<std::int64_t> first_window_;  // number of the first window of each corpus, then the number of all windows
  std::int64_t batches_ = 0, selected_ = 0;
};

}  // namespace ring

#pragma once
// Samples have an address: sample g of a run is a window of T + 1 tokens whose place is a pure function of (seed, g).
//
// A corpus of n tokens is cut into windows that share one border token, so that every token but the first is a target.
// Each epoch visits them in its own order (data/permutation.h) and moves all borders by its own phase in [0, T).
// Several corpora are mixed by data/mixture.h. Seeking is O(1), the state is the next sample's number, and the number
// of ranks only chooses who reads which sample.
//
// Packed documents: the same windows, cut where documents begin; no target crosses a cut. With gaps between documents
// (align > 1) or by best fit a sample is a row of data/packing.h, and epochs differ in their order only. Shorter
// sequences: the same samples, cut at multiples of a length that may change from batch to batch; targets stay.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "data/config.h"
#include "data/mixture.h"
#include "data/packing.h"

namespace ring {

class TokenSplit;
enum class Split : std::uint8_t;

// `rows` windows of `context` tokens, row-major.
struct Batch {
  // [rows * context]; a target of -100 is no target, as of a token that does not count by its corpus's loss mask.
  std::vector<std::int32_t> inputs, targets;
  std::vector<std::int64_t> sample_indices;  // [rows]; -1: an empty row that only fills the batch
  std::vector<std::int32_t> sources;         // [rows]: from which corpus; -1: an empty row
  std::int64_t valid_targets = 0;
  // Packed documents and shorter sequences only. [rows * context]: place in the document or sequence; of each i32: the
  // first token, counted in the batch, and how many there are. Tokens of none are padding.
  std::vector<std::int32_t> positions, starts, lengths;
};

// How many targets the rows of each corpus have.
std::vector<std::int64_t> targets_by_source(const Batch&, std::size_t corpora);

struct LoaderOptions {
  std::int64_t context = 0;  // T, tokens per row
  std::int64_t rows = 1;     // per micro-batch on this rank
  std::uint64_t seed = 0;
  int rank = 0, world = 1;
  std::int64_t prefetch = 4;  // micro-batches read ahead; 0: none, no thread
  PackingConfig packing = {};
  std::int64_t sequence = 0;  // tokens of each of a row's sequences; 0: the row is one
  bool packs() const { return packing.documents || sequence > 0; }
};

// Where a sample lies.
struct SamplePlace {
  std::uint32_t corpus;
  std::uint64_t begin, end;  // of a window: its tokens; one more follows, the last target
  std::uint64_t row = 0;     // of packed rows: which, and the tokens are what it says
};

// The pure function. Packed rows read the corpora, which must then live as long.
class SampleMap {
 public:
  // Error: a corpus has fewer than context + 1 training tokens, or for packed rows none.
  SampleMap(const Corpora&, std::int64_t context, std::uint64_t seed, const PackingConfig& packing = {});
  SamplePlace operator()(std::uint64_t sample) const;
  std::uint64_t windows(std::size_t corpus) const { return windows_[corpus]; }    // per epoch
  const std::vector<std::unique_ptr<PackedRows>>& rows() const { return rows_; }  // of each corpus; or none: windows

 private:
  std::vector<std::uint64_t> tokens_, windows_;
  std::vector<std::unique_ptr<PackedRows>> rows_;
  std::uint64_t context_, seed_;
  MixtureSchedule mixture_;
};

// Micro-batch m of the run holds samples [m * rows * world, (m + 1) * rows * world); rank r gets the r-th run of `rows`
// of them. So the samples of an optimizer step do not depend on how rows, ranks and accumulation share them.
class Loader {
 public:
  Loader(Corpora corpora, const LoaderOptions& options, std::uint64_t first_sample = 0);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  Batch next();                            // Error: the corpus is damaged
  void seek(std::uint64_t sample);         // the first sample of the next micro-batch, over all ranks
  void set_rows(std::int64_t rows);        // of the batches from now on
  void set_sequence(std::int64_t tokens);  // the same
  std::uint64_t next_sample() const { return next_sample_; }  // the state: seek(next_sample()) continues
  const SampleMap& map() const { return map_; }
  const LoaderOptions& options() const { return options_; }

 private:
  Batch read(std::uint64_t first) const;
  void change(std::int64_t LoaderOptions::*option, std::int64_t value);
  void start();
  void stop();
  void read_ahead();
  std::uint64_t samples_per_batch() const { return static_cast<std::uint64_t>(options_.rows * options_.world); }

  Corpora corpora_;
  LoaderOptions options_;
  SampleMap map_;
  std::uint64_t next_sample_ = 0;

  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::uint64_t, Batch>> ready_;  // with their first samples, in order
  std::uint64_t wanted_ = 0;                           // no earlier sample is worth reading
  bool stopping_ = false;
};

// The validation splits of all corpora (or their training splits), cut into windows (or packed into rows) in order,
// without overlap of targets; the last window of a split may be shorter and is filled up with targets of -100. Every
// rank sees the same number of batches.
class ValidationSet {
 public:
  // windows = 0: everything; else that many, spread evenly, the same ones for any number of ranks. Error: no corpus has
  // such a split of at least two tokens.
  ValidationSet(Corpora corpora, const LoaderOptions& options, std::int64_t windows = 0);
  ValidationSet(Corpora corpora, const LoaderOptions& options, std::int64_t windows, Split split);
  std::int64_t batches() const { return batches_; }   // per rank
  std::int64_t windows() const { return selected_; }  // over all ranks
  const LoaderOptions& options() const { return options_; }
  std::size_t corpora() const { return corpora_.stores.size(); }
  Batch batch(std::int64_t index) const;  // of this rank
  double bytes_per_token() const;         // text bytes per token that counts, of the splits, for bits per byte

 private:
  const TokenSplit& split_of(std::size_t corpus) const;
  SamplePlace find(std::int64_t window) const;

  Corpora corpora_;
  LoaderOptions options_;
  Split split_;
  std::vector<std::unique_ptr<PackedRows>> rows_;
  std::vector<std::int64_t> first_window_;  // of each corpus, then the number of all
  std::int64_t batches_ = 0, selected_ = 0;
};

}  // namespace ring

#include "data/loader.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <span>

#include "core/check.h"
#include "data/permutation.h"
#include "data/token_store.h"

namespace ring {
namespace {

constexpr std::int32_t kNoTarget = -100;  // target that the cross-entropy kernel ignores

void check_options(const LoaderOptions& o) {
  RING_CHECK(o.context > 0 && o.rows > 0, "a loader of ", o.rows, " rows of ", o.context, " tokens");
  RING_CHECK(o.world > 0 && o.rank >= 0 && o.rank < o.world, "rank ", o.rank, " of ", o.world);
  RING_CHECK(o.prefetch >= 0, "a prefetch depth of ", o.prefetch);
  RING_CHECK(o.packing.align > 0 && (o.packing.documents || o.packing.align == 1), "documents at multiples of ",
             o.packing.align, o.packing.documents ? "" : ", without packed documents");
  RING_CHECK(o.sequence >= 0 && (!o.sequence || o.context % o.sequence == 0), "sequences of ", o.sequence,
             " tokens in rows of ", o.context);
  RING_CHECK(!o.packs() || o.rows <= std::numeric_limits<std::int32_t>::max() / o.context, o.rows, " packed rows of ",
             o.context, " tokens do not fit into 32 bits");
}

void allocate_tokens(Batch& b, const LoaderOptions& o) {
  b.inputs.assign(static_cast<std::size_t>(o.rows * o.context), 0);
  b.targets.assign(b.inputs.size(), kNoTarget);
  if (o.packs()) b.positions.assign(b.inputs.size(), 0);
}

Batch empty_batch(const LoaderOptions& o) {
  Batch b;
  b.sample_indices.assign(static_cast<std::size_t>(o.rows), -1);
  b.sources.assign(static_cast<std::size_t>(o.rows), -1);
  if (o.unread && o.rows == 1 && !o.packs())
    b.unread = std::make_shared<UnreadRow>();
  else
    allocate_tokens(b, o);
  return b;
}

// Replaces the targets that the loss mask excludes by kNoTarget. Returns how many it replaced. first: index of the
// first target's token in the split.
std::int64_t mask_targets(std::span<std::int32_t> targets, const TokenSplit& split, std::uint64_t first) {
  if (!split.masked()) return 0;
  std::vector<std::uint8_t> counts(targets.size());
  split.read_mask(first, counts.size(), counts.data());
  for (std::size_t i = 0; i < counts.size(); ++i)
    if (!counts[i]) targets[i] = kNoTarget;
  return std::ranges::count(counts, std::uint8_t{0});
}

// Writes tokens [begin, begin + length) as inputs to the batch from index `at` on, with their targets. If `ends`, the
// last token has no target.
void fill(Batch& b, std::int64_t at, const TokenSplit& split, std::uint64_t begin, std::size_t length, bool ends) {
  std::int32_t *inputs = b.inputs.data() + at, *targets = b.targets.data() + at;
  split.read(begin, length, inputs);
  std::copy(inputs + 1, inputs + length, targets);
  if (!ends) split.read(begin + length, 1, targets + length - 1);
  const std::size_t with_target = length - (ends ? 1 : 0);
  b.valid_targets += static_cast<std::int64_t>(with_target) - mask_targets({targets, with_target}, split, begin + 1);
}

// Appends tokens [at, at + length) of the row that begins at index `row` of the batch as sequences, split at multiples
// of `sequence`.
void append_sequences(Batch& b, std::int64_t row, std::int64_t at, std::int64_t length, std::int64_t sequence) {
  for (const std::int64_t end = at + length; at < end;) {
    const std::int64_t n = std::min(end, (at / sequence + 1) * sequence) - at;
    std::iota(b.positions.begin() + row + at, b.positions.begin() + row + at + n, 0);
    b.starts.push_back(static_cast<std::int32_t>(row + at));
    b.lengths.push_back(static_cast<std::int32_t>(n));
    at += n;
  }
}

// Marks the tokens of a piece, which begins at index `at` of the batch, as those of the next document.
void add_answer(Batch& b, std::int64_t at, const PackedPiece& piece) {
  if (b.answers.empty()) b.answers.assign(b.inputs.size(), -1);
  std::fill_n(b.answers.begin() + at, piece.length, static_cast<std::int32_t>(b.documents.size()));
  b.documents.push_back(piece.document);
}

const PackedRows* rows_of(const std::vector<std::unique_ptr<PackedRows>>& rows, const SampleLocation& place) {
  return rows.empty() ? nullptr : rows[place.corpus].get();
}

// Fills one row with a sample. rows: packed rows of the sample's corpus; null if samples are windows.
void fill_row(Batch& b, std::int64_t row, const LoaderOptions& o, const TokenSplit& split, const SampleLocation& place,
              const PackedRows* rows) {
  const std::int64_t first = row * o.context, sequence = o.sequence ? o.sequence : o.context;
  // Number of tokens in the row: those of the window, or 0 for a packed row, to which each piece adds its tokens.
  auto filled = static_cast<std::int64_t>(place.end - place.begin);
  const auto add = [&](const PackedPiece& piece) {
    fill(b, first + piece.at, split, piece.begin, static_cast<std::size_t>(piece.length), piece.ends);
    if (o.packing.documents) append_sequences(b, first, piece.at, piece.length, sequence);
    if (split.pairs() && rows) add_answer(b, first + piece.at, piece);
    filled = std::max(filled, piece.at + piece.length);
  };
  if (rows) {  // a packed row
    std::ranges::for_each(rows->pieces(place.row), add);
  } else if (o.packing.documents) {  // a window, split at documents
    DocumentStarts starts(split);
    std::uint64_t document = starts.document_of(place.begin);
    for_each_piece(starts, place.begin, place.end, o.context, /*align=*/1, document, add);
  } else {  // a whole window
    add({place.begin, 0, filled, false});
  }
  if (o.packs() && !o.packing.documents) append_sequences(b, first, 0, filled, sequence);
}

// Fills one row of an empty batch, or leaves it unread.
void add_row(Batch& b, std::int64_t row, const LoaderOptions& o, const std::shared_ptr<const TokenStore>& store,
             const TokenSplit& split, const SampleLocation& place, const PackedRows* rows) {
  if (b.unread && !split.masked()) {
    b.unread = std::make_shared<UnreadRow>(store, split, place.begin, place.end);
    b.valid_targets = static_cast<std::int64_t>(place.end - place.begin);
    return;
  }
  if (std::exchange(b.unread, nullptr)) allocate_tokens(b, o);
  fill_row(b, row, o, split, place, rows);
}

// Converts the starts of stages from tokens to samples. A stage begins with the first sample that has at least as many
// tokens before it as the stage's start.
std::vector<MixtureSchedule::Stage> in_samples(const std::vector<MixtureStage>& stages, std::uint64_t context) {
  std::vector<MixtureSchedule::Stage> out;
  for (const MixtureStage& s : stages)
    out.push_back({(static_cast<std::uint64_t>(s.tokens) + context - 1) / context, s.weights});
  return out;
}

}  // namespace

void UnreadRow::read(std::int64_t first, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
  const std::uint64_t from = std::min(end_, begin_ + static_cast<std::uint64_t>(first));
  const std::size_t count = std::min<std::size_t>(inputs.size(), end_ - from);
  std::ranges::fill(inputs, 0);
  std::ranges::fill(targets, kNoTarget);
  if (count == 0) return;
  split_->read(from, count, inputs.data());
  std::ranges::copy(inputs.subspan(1, count - 1), targets.begin());
  split_->read(from + count, 1, targets.data() + count - 1);
}

std::vector<std::int64_t> count_targets_by_source(const Batch& b, std::size_t corpora) {
  std::vector<std::int64_t> counts(corpora);
  if (b.unread) {
    if (b.sources[0] >= 0) counts[static_cast<std::size_t>(b.sources[0])] = b.valid_targets;
    return counts;
  }
  const std::size_t tokens = b.sources.empty() ? 0 : b.targets.size() / b.sources.size();
  for (std::size_t row = 0; row < b.sources.size(); ++row) {
    const std::span<const std::int32_t> targets(b.targets.data() + row * tokens, tokens);
    const std::int64_t valid = std::ranges::count_if(targets, [](std::int32_t t) { return t != kNoTarget; });
    if (b.sources[row] >= 0) counts[static_cast<std::size_t>(b.sources[row])] += valid;
  }
  return counts;
}

// --- training samples ---

SampleMap::SampleMap(const Corpora& corpora, std::int64_t context, std::uint64_t seed, const PackingConfig& packing)
    : context_(static_cast<std::uint64_t>(context)),
      seed_(seed),
      mixture_(in_samples(corpora.mixture, static_cast<std::uint64_t>(context))) {
  for (const auto& store : corpora.stores) {
    const std::uint64_t n = store->train().tokens();
    tokens_.push_back(n);
    if (packing.in_rows()) {
      if (n == 0) fail("corpus ", store->path(), " has no training tokens; prepare it again with more text");
      windows_.push_back(rows_.emplace_back(pack_rows(store->train(), context, packing))->rows());
      continue;
    }
    if (n < context_ + 1) {
      fail("corpus ", store->path(), " has ", n, " training tokens, but one sample needs context + 1 = ", context_ + 1,
           "; prepare more text or train with a context of at most ", n < 2 ? 1 : n - 1);
    }
    windows_.push_back(std::max<std::uint64_t>(1, (n - context_) / context_));  // one context less: room for the phase
  }
}

// An epoch has W windows of T = context_ tokens, all shifted by the epoch's phase p. In a corpus of n tokens they need
// p + W T + 1 <= n, so p has min(T, n - W T) possible values.
SampleLocation SampleMap::operator()(std::uint64_t sample) const {
  const Mixture::Location place = mixture_(sample);
  const std::uint64_t n = tokens_[place.corpus], w = windows_[place.corpus];
  const std::uint64_t epoch = place.index / w, turn = place.index % w;
  const auto epoch_key = static_cast<std::uint32_t>(epoch);
  const Permutation order(w, seed_ ^ (std::uint64_t{site_of("data.order")} << 32), place.corpus, epoch_key);
  if (!rows_.empty()) return {place.corpus, 0, 0, order(turn)};
  const std::uint64_t phases = std::min(context_, n - w * context_);
  const Philox4 r = random_block({seed_, epoch_key, site_of("data.phase")}, place.corpus);
  const std::uint64_t phase = ((std::uint64_t{r.v[0]} << 32) | r.v[1]) % phases;
  const std::uint64_t begin = phase + order(turn) * context_;
  return {place.corpus, begin, begin + context_};
}

Loader::Loader(Corpora corpora, const LoaderOptions& options, std::uint64_t first_sample)
    : corpora_(std::move(corpora)),
      options_(options),
      map_(corpora_, options.context, options.seed, options.packing),
      next_sample_(first_sample) {
  check_options(options_);
  start_thread();
}

Loader::~Loader() { stop_thread(); }

Batch Loader::read(std::uint64_t first) const {
  Batch batch = empty_batch(options_);
  for (std::int64_t row = 0; row < options_.rows; ++row) {
    const std::uint64_t sample = first + static_cast<std::uint64_t>(options_.rank * options_.rows + row);
    const SampleLocation place = map_(sample);
    const std::shared_ptr<const TokenStore>& store = corpora_.stores[place.corpus];
    add_row(batch, row, options_, store, store->train(), place, rows_of(map_.rows(), place));
    batch.sample_indices[static_cast<std::size_t>(row)] = static_cast<std::int64_t>(sample);
    batch.sources[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(place.corpus);
  }
  return batch;
}

void Loader::start_thread() {
  if (options_.prefetch == 0) return;
  stopping_ = false;
  wanted_ = next_sample_;
  thread_ = std::thread([this] { read_ahead(); });
}

void Loader::stop_thread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  ready_.clear();
}

// Runs in the reader thread. When the queue is full, sleeps until next() has taken half of the batches, so that the two
// threads seldom switch.
void Loader::read_ahead() {
  const auto depth = static_cast<std::size_t>(options_.prefetch);
  std::uint64_t sample = 0;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (ready_.size() >= depth) changed_.wait(lock, [&] { return stopping_ || ready_.size() <= depth / 2; });
    if (stopping_) return;
    sample = std::max(sample, wanted_);
    lock.unlock();
    Batch batch;
    try {
      batch = read(sample);
    } catch (const Error&) {
      return;  // next() reads the same sample and throws in the caller
    }
    lock.lock();
    ready_.push_back({sample, std::move(batch)});
    sample += samples_per_batch();
  }
}

// Never waits for the reader thread: reading a batch in this thread is cheaper than a wake-up.
Batch Loader::next() {
  std::optional<Batch> batch;
  if (options_.prefetch > 0) {
    const std::lock_guard lock(mutex_);
    while (!ready_.empty() && ready_.front().first < next_sample_) ready_.pop_front();
    if (!ready_.empty() && ready_.front().first == next_sample_) {
      batch = std::move(ready_.front().second);
      ready_.pop_front();
    }
    wanted_ = next_sample_ + samples_per_batch();
  }
  changed_.notify_one();
  if (!batch) batch = read(next_sample_);
  next_sample_ += samples_per_batch();
  return std::move(*batch);
}

void Loader::set_option(std::int64_t LoaderOptions::*option, std::int64_t value) {
  if (options_.*option == value) return;
  stop_thread();
  options_.*option = value;
  check_options(options_);
  start_thread();
}

void Loader::set_rows(std::int64_t rows) { set_option(&LoaderOptions::rows, rows); }

void Loader::set_sequence(std::int64_t tokens) { set_option(&LoaderOptions::sequence, tokens); }

void Loader::seek(std::uint64_t sample) {
  if (sample == next_sample_) return;
  stop_thread();
  next_sample_ = sample;
  start_thread();
}

// --- validation ---

ValidationSet::ValidationSet(Corpora corpora, const LoaderOptions& options, std::int64_t windows)
    : ValidationSet(std::move(corpora), options, windows, Split::validation) {}

ValidationSet::ValidationSet(Corpora corpora, const LoaderOptions& options, std::int64_t windows, Split which)
    : corpora_(std::move(corpora)), options_(options), split_(which), first_window_{0} {
  check_options(options_);
  for (std::size_t i = 0; i < corpora_.stores.size(); ++i) {
    const TokenSplit& split = split_of(i);
    const auto targets = static_cast<std::int64_t>(std::max<std::uint64_t>(split.tokens(), 1)) - 1;
    std::int64_t windows_here = (targets + options_.context - 1) / options_.context;
    if (options_.packing.in_rows()) {
      rows_.push_back(pack_rows(split, options_.context, options_.packing));
      windows_here = targets > 0 ? static_cast<std::int64_t>(rows_.back()->rows()) : 0;
    }
    first_window_.push_back(first_window_.back() + windows_here);
  }
  const std::int64_t all = first_window_.back(), per_batch = options_.rows * options_.world;
  if (all == 0)
    fail("corpus ", corpora_.stores.front()->path(), " has no ", split_ == Split::train ? "training" : "validation",
         " split (", split_of(0).tokens(), " tokens, at least 2 are needed); prepare it again with a ",
         split_ == Split::train ? "smaller" : "larger", " --validation-fraction");
  selected_ = windows > 0 ? std::min(all, windows) : all;
  batches_ = (selected_ + per_batch - 1) / per_batch;
}

const TokenSplit& ValidationSet::split_of(std::size_t corpus) const {
  const TokenStore& store = *corpora_.stores[corpus];
  return split_ == Split::train ? store.train() : store.validation();
}

SampleLocation ValidationSet::find_window(std::int64_t window) const {
  const auto after = std::upper_bound(first_window_.begin(), first_window_.end(), window);
  const auto corpus = static_cast<std::uint32_t>(after - first_window_.begin()) - 1;
  const auto local = static_cast<std::uint64_t>(window - first_window_[corpus]);
  const std::uint64_t tokens = split_of(corpus).tokens();
  if (!rows_.empty()) return {corpus, 0, 0, local};
  const auto context = static_cast<std::uint64_t>(options_.context);
  return {corpus, local * context, std::min((local + 1) * context, tokens - 1)};
}

Batch ValidationSet::batch(std::int64_t index) const {
  RING_CHECK(index >= 0 && index < batches_, "validation batch ", index, " of ", batches_);
  Batch batch = empty_batch(options_);
  const std::int64_t all = first_window_.back();
  for (std::int64_t row = 0; row < options_.rows; ++row) {
    const std::int64_t place = (index * options_.world + options_.rank) * options_.rows + row;
    if (place >= selected_) continue;
    // Spreads the selected windows evenly: floor(place * all / selected_), computed without overflow.
    const std::int64_t window = place * (all / selected_) + place * (all % selected_) / selected_;
    const SampleLocation from = find_window(window);
    add_row(batch, row, options_, corpora_.stores[from.corpus], split_of(from.corpus), from, rows_of(rows_, from));
    batch.sample_indices[static_cast<std::size_t>(row)] = window;
    batch.sources[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(from.corpus);
  }
  return batch;
}

double ValidationSet::bytes_per_token() const {
  double bytes = 0, tokens = 0;
  for (std::size_t i = 0; i < corpora_.stores.size(); ++i) {
    bytes += static_cast<double>(split_of(i).target_bytes());
    tokens += static_cast<double>(split_of(i).targets());
  }
  return bytes > 0 ? bytes / tokens : 1;  // without text the ratio is undefined
}

}  // namespace ring

#include "parallel/context/state_chain.h"

#include <algorithm>
#include <utility>

#include "parallel/context/chunk_store.h"
#include "parallel/context/exchange.h"

namespace ring {
namespace {

// The rows of a run, counted in the micro-batch: for chunks in the whole sequence.
struct StateRun {
  int rank = 0;
  std::int64_t local = 0;                      // index among the runs of its rank
  std::int32_t first = 0, begin = 0, end = 0;  // first: counted in the rank's rows
  std::int32_t count() const { return end - begin; }
};

// The runs of all ranks, adjacent and ascending; with chunks, those of the current chunk.
struct StateRuns {
  std::vector<StateRun> runs;
  const std::vector<Span>* documents = nullptr;  // ascending
  int chunk = 0;                                 // 0 if sequences are not divided into chunks

  // Returns the document with rows on both sides of a boundary; null if there is none.
  const Span* crossing(std::int32_t row) const {
    const auto after = std::ranges::lower_bound(*documents, row, {}, &Span::first);
    if (after == documents->begin()) return nullptr;
    const Span& d = *std::prev(after);
    return d.first + d.count > row ? &d : nullptr;
  }
};

StateRuns runs_of(const ContextShards& s, bool shared, bool chunked) {
  StateRuns all;
  const ContextShards& whole = s.chunks ? *s.chunks : s;
  all.documents = &whole.documents;
  if (chunked) all.chunk = whole.rank;
  const std::int32_t before = s.chunks ? whole.rows_by_rank[static_cast<std::size_t>(whole.rank)].front().global : 0;
  const auto add = [&](const std::vector<LocalRows>& rows, int rank) {
    std::int64_t local = 0;
    for (const LocalRows& r : rows) {
      const std::int32_t begin = before + r.global;
      all.runs.push_back({rank, local++, r.first, begin, begin + r.count});
    }
  };
  for (int r = 0; shared && r < s.ranks(); ++r) add(s.rows_by_rank[static_cast<std::size_t>(r)], r);
  if (!shared) add(s.rows_by_rank[static_cast<std::size_t>(s.rank)], 0);
  std::erase_if(all.runs, [](const StateRun& r) { return r.count() == 0; });
  std::ranges::sort(all.runs, {}, &StateRun::begin);
  return all;
}

// Appends the parts of a run: the rows of a document that began earlier, whole documents, and the rows of a document
// that continues.
void add_parts(const StateRuns& all, const StateRun& run, std::vector<StatePart>& parts) {
  const auto add = [&](std::int32_t begin, std::int32_t end) -> StatePart& {
    return parts.emplace_back(
        StatePart{.first = run.first + begin - run.begin, .count = end - begin, .documents = {}, .run = run.local});
  };
  std::int32_t begin = run.begin, end = run.end;
  const Span *earlier = all.crossing(run.begin), *later = all.crossing(run.end);
  if (earlier) {
    const std::int32_t stop = std::min(end, earlier->first + earlier->count);
    StatePart& p = add(begin, stop);
    p.documents = {{0, p.count}}, p.starts = true, p.continues = earlier == later;
    begin = stop;
  }
  if (later && later != earlier) end = later->first;
  if (begin < end) {
    StatePart& p = add(begin, end);
    auto d = std::ranges::lower_bound(*all.documents, begin, {}, &Span::first);
    for (; d != all.documents->end() && d->first < end; ++d) p.documents.push_back({d->first - begin, d->count});
  }
  if (later && later != earlier) {
    StatePart& p = add(end, run.end);
    p.documents = {{0, p.count}}, p.continues = true;
  }
}

constexpr int kNoLink = -1;

}  // namespace

std::vector<StatePart> DocumentStates::parts(const ContextShards& shards) const {
  const StateRuns all = runs_of(shards, ranks_ != nullptr, store_ != nullptr);
  std::vector<StatePart> parts;
  for (const StateRun& run : all.runs)
    if (run.rank == (ranks_ ? shards.rank : 0)) add_parts(all, run, parts);
  return parts;
}

// One forward or backward. Link i is the boundary before run i, and the last link is the one after the last run: link 0
// and the last link connect chunks.
class DocumentStates::Pass {
 public:
  Pass(const DocumentStates& of, const StatePass& pass, const ContextShards& shards, bool forward,
       const ExecContext& ctx)
      : of_(of), pass_(pass), forward_(forward), ctx_(ctx), all_(runs_of(shards, of.ranks_, of.store_)) {
    if (of_.ranks_) of_.ranks_->check_shards(shards);
    me_ = of_.ranks_ ? shards.rank : 0;
    ranks_ = of_.ranks_ ? shards.ranks() : 1;
    make_links();
    for (std::size_t i = 0; i < all_.runs.size(); ++i)
      if (all_.runs[i].rank == me_) make_parts(i);
  }

  void run() {
    load_from_store();
    for (const Part& p : parts_)
      if (const int to = target(p); to != kNoLink && is_early(p)) provide(to, pass_.early(index_of(p)));
    compute_ready(true);
    for (int i = 0; i < depths_; ++i) {
      exchange(forward_ ? i : depths_ - 1 - i);
      compute_ready(true);
    }
    compute_ready(false);
    for (const Part& p : parts_) RING_CHECK(p.done, "state chain: a part of a document waits for a state in vain");
    save_to_store();
  }

 private:
  struct Link {
    bool used = false;     // a document crosses it
    int from = 0, to = 0;  // ranks of the rows before and after the link; between chunks, that which stores the state
    int depth = 0;
    bool known = false;  // this rank has `state`
    Tensor state;        // in the backward, its gradient
  };
  struct Part {
    StatePart rows;
    int in = kNoLink, out = kNoLink;
    bool done = false;
  };

  void make_links() {
    const std::vector<StateRun>& runs = all_.runs;
    links_.resize(runs.size() + 1);
    for (std::size_t i = 0; i < links_.size() && !runs.empty(); ++i) {
      Link& link = links_[i];
      const bool inner = i > 0 && i < runs.size();
      link.from = i > 0 ? runs[i - 1].rank : ranks_ - 1;
      link.to = i < runs.size() ? runs[i].rank : link.from;
      const Span* document = all_.crossing(i < runs.size() ? runs[i].begin : runs.back().end);
      link.used = document && (inner || of_.store_);
      if (!link.used || i == runs.size()) continue;
      const bool waits = i > 0 && links_[i - 1].used && document->first < runs[i - 1].begin &&
                         !(pass_.reach > 0 && runs[i - 1].count() >= pass_.reach);
      link.depth = waits ? links_[i - 1].depth + 1 : 0;
      if (of_.ranks_) depths_ = std::max(depths_, link.depth + 1);
    }
  }
  void make_parts(std::size_t run) {
    std::vector<StatePart> parts;
    add_parts(all_, all_.runs[run], parts);
    for (const StatePart& p : parts)
      parts_.push_back(
          {p, p.starts ? static_cast<int>(run) : kNoLink, p.continues ? static_cast<int>(run) + 1 : kNoLink});
  }

  // The links from which a part gets a state, and to which it gives one.
  int source(const Part& p) const { return forward_ ? p.in : p.out; }
  int target(const Part& p) const { return forward_ ? p.out : p.in; }
  Link& link(int i) { return links_[static_cast<std::size_t>(i)]; }
  std::size_t index_of(const Part& p) const { return static_cast<std::size_t>(&p - parts_.data()); }
  bool is_early(const Part& p) const { return pass_.reach > 0 && p.rows.count >= pass_.reach; }
  bool is_last_here() const { return !all_.runs.empty() && all_.runs.back().rank == me_; }
  ChunkStore::Key key_of(int chunk) const { return {of_.layer_, -1 - static_cast<std::int64_t>(pass_.kind), chunk, 0}; }

  void provide(int to, const Tensor& state) {
    RING_CHECK(state.defined(), "state chain: a part returned no state");
    link(to).state = state, link(to).known = true;
  }

  // Computes the parts whose states are known. Only those that give a state to others, if so wanted.
  void compute_ready(bool only_givers) {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      Part& p = parts_[forward_ ? i : parts_.size() - 1 - i];
      const int from = source(p), to = target(p);
      const bool gives = to != kNoLink && !link(to).known;
      if (p.done || (only_givers && !gives) || (from != kNoLink && !link(from).known)) continue;
      const Tensor state = pass_.compute(index_of(p), from == kNoLink ? Tensor{} : link(from).state);
      p.done = true;
      if (gives) provide(to, state);
    }
  }

  // Exchanges the states of the links of one depth.
  void exchange(int depth) {
    std::vector<Transfer> sends, receives;
    std::vector<std::pair<Link*, Tensor>> received;
    for (Link& l : links_) {
      const int sender = forward_ ? l.from : l.to, receiver = forward_ ? l.to : l.from;
      if (!l.used || l.depth != depth || sender == receiver || &l == &links_.back()) continue;
      if (sender == me_) {
        RING_CHECK(l.known, "state chain: the state of a link of depth ", depth, " is not known");
        sends.push_back({l.state, receiver});
      }
      if (receiver != me_) continue;
      received.emplace_back(&l, ctx_.empty(pass_.shape));
      receives.push_back({received.back().second, sender});
    }
    Work work = of_.ranks_->exchange(std::move(sends), std::move(receives), ctx_);
    compute_ready(false);
    work.wait(ctx_.stream);
    for (auto& [l, state] : received) l->state = state, l->known = true;
  }

  // Link 0 is the boundary to the previous chunk, whose state is stored on the rank that has that chunk's last rows.
  // All ranks have rows of each chunk, in the order of the ranks (slices_of_parts), so this is the last rank.
  void load_from_store() {
    if (!of_.store_ || all_.runs.empty()) return;
    if (forward_) {
      Link& before = links_.front();
      if (before.used && before.from == me_) provide(0, of_.store_->keys(key_of(all_.chunk - 1)));
    } else if (is_last_here()) {
      Link& after = links_.back();
      if (after.used) after.state = of_.store_->gradients(key_of(all_.chunk)), after.known = true;
      of_.store_->drop(key_of(all_.chunk));
    }
  }
  void save_to_store() {
    if (!of_.store_ || all_.runs.empty()) return;
    if (forward_) {
      if (of_.keeps_ && is_last_here() && links_.back().used) of_.store_->put(key_of(all_.chunk), links_.back().state);
    } else if (Link& before = links_.front(); before.used && before.from == me_) {
      of_.store_->add_gradients(key_of(all_.chunk - 1), before.state);
    }
  }

  const DocumentStates& of_;
  const StatePass& pass_;
  const bool forward_;
  const ExecContext& ctx_;
  const StateRuns all_;
  int me_ = 0, ranks_ = 1, depths_ = 0;
  std::vector<Link> links_;
  std::vector<Part> parts_;
};

void DocumentStates::forward(const StatePass& pass, const ContextShards& shards, const ExecContext& ctx) {
  Pass(*this, pass, shards, true, ctx).run();
}
void DocumentStates::backward(const StatePass& pass, const ContextShards& shards, const ExecContext& ctx) {
  Pass(*this, pass, shards, false, ctx).run();
}

std::unique_ptr<StateChain> make_state_chain(ContextTransfers& ranks) {
  return std::make_unique<DocumentStates>(&ranks);
}

}  // namespace ring

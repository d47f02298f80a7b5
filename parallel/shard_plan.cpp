#include "parallel/shard_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "model/weight_encoding.h"

namespace ring {
namespace {

std::int64_t columns_of(const Param& p) { return p.shape.size() == 2 ? p.shape[1] : 1; }

ShardPiece piece(const Param& p, std::int64_t first_row, std::int64_t rows, int owner = 0) {
  const std::int64_t columns = columns_of(p);
  return {&p, first_row, rows, p.offset + first_row * columns, rows * columns, owner, 0};
}

// Splits a parameter into its logical parameters. Returns it as one piece if one of them is not aligned for kernels or
// for the encoding of the weight.
std::vector<ShardPiece> natural_pieces(const Param& p) {
  std::vector<ShardPiece> out;
  const WeightEncoding* const encoding = encoding_of(p);
  const std::int64_t rows = p.shape[0], multiple = encoding ? encoding->row_multiple() : 1;
  for (std::size_t i = 0; i < p.parts.size(); ++i) {
    const std::int64_t begin = i ? p.parts[i].first_row : 0;
    const std::int64_t end = i + 1 < p.parts.size() ? p.parts[i + 1].first_row : rows;
    if (begin * columns_of(p) % kParamAlign || begin % multiple) return {piece(p, 0, rows)};
    if (end > begin) out.push_back(piece(p, begin, end - begin));
  }
  return out;
}

// Returns the FLOPs of the whole-matrix updates of a piece.
double update_flops(const ShardPiece& p) {
  double flops = 0;
  for (const LogicalPiece& l : logical_pieces(p)) flops += l.part->update_flops;
  return flops;
}

class Balance {
 public:
  explicit Balance(int ranks) : load_(static_cast<std::size_t>(ranks), 0), flops_(load_.size(), 0) {}

  int lightest() const { return static_cast<int>(std::min_element(load_.begin(), load_.end()) - load_.begin()); }
  // Returns the rank with the fewest FLOPs; on a tie, the one with the fewest elements.
  int idlest() const {
    std::size_t best = 0;
    for (std::size_t r = 1; r < load_.size(); ++r)
      if (std::pair(flops_[r], load_[r]) < std::pair(flops_[best], load_[best])) best = r;
    return static_cast<int>(best);
  }
  void give(ShardPiece& p, int rank, double flops = 0) {
    p.owner = rank;
    load_[static_cast<std::size_t>(rank)] += p.numel;
    flops_[static_cast<std::size_t>(rank)] += flops;
  }

  // Splits a table by rows, in rank order, so that the ranks' loads become as equal as possible: the ranks with the
  // smallest loads get the most rows.
  void cut(const Param& p, std::vector<ShardPiece>& out) {
    const std::int64_t unit = std::lcm(columns_of(p), kParamAlign) / columns_of(p), rows = p.shape[0];
    std::int64_t first = 0;
    for (std::size_t r = 0; r < load_.size() && first < rows; ++r) {
      const std::int64_t lacks =
          std::max(std::int64_t{0}, level(p.shape.numel() - first * columns_of(p), r) - load_[r]);
      std::int64_t mine = (lacks / columns_of(p) + unit - 1) / unit * unit;
      mine = r + 1 == load_.size() ? rows - first : std::min(mine, rows - first);
      if (mine) give(out.emplace_back(piece(p, first, mine)), static_cast<int>(r));
      first += mine;
    }
  }

 private:
  // Distributes `elements` to the least loaded ranks from `first` on, to level their loads (water filling). Returns the
  // load that these ranks reach.
  std::int64_t level(std::int64_t elements, std::size_t first) const {
    std::vector<std::int64_t> loads(load_.begin() + static_cast<std::ptrdiff_t>(first), load_.end());
    std::sort(loads.begin(), loads.end());
    std::int64_t sum = elements;
    for (std::size_t n = 1; n <= loads.size(); ++n) {
      sum += loads[n - 1];
      const std::int64_t height = (sum + static_cast<std::int64_t>(n) - 1) / static_cast<std::int64_t>(n);
      if (n == loads.size() || height <= loads[n]) return height;
    }
    return 0;
  }

  std::vector<std::int64_t> load_;
  std::vector<double> flops_;
};

// Assigns either the frozen parameters (if `frozen`) or the trained ones to ranks, and adds their pieces to `all`.
void share(const Parameters& params, bool frozen, int ranks, std::vector<ShardPiece>& all) {
  std::vector<ShardPiece> out;
  for (const Param* p : params.layout())
    if (!p->table && p->is_frozen() == frozen)
      for (const ShardPiece& whole : natural_pieces(*p)) out.push_back(whole);
  std::stable_sort(out.begin(), out.end(), [](const ShardPiece& a, const ShardPiece& b) {
    return std::pair(update_flops(a), a.numel) > std::pair(update_flops(b), b.numel);
  });
  Balance balance(ranks);
  for (ShardPiece& p : out) {
    const double flops = update_flops(p);
    balance.give(p, flops > 0 ? balance.idlest() : balance.lightest(), flops);
  }
  for (const Param* p : params.layout())
    if (p->table && p->is_frozen() == frozen) balance.cut(*p, out);
  all.insert(all.end(), out.begin(), out.end());
}

// Returns the end of a rank's pieces of the parameters for which `counts` is true.
template <class Counts>
std::int64_t end_of_shard(const std::vector<ShardPiece>& plan, int rank, const Counts& counts) {
  std::int64_t size = 0;
  for (const ShardPiece& p : plan)
    if (p.owner == rank && counts(*p.param)) size = std::max(size, p.shard_offset + param_aligned(p.numel));
  return size;
}

}  // namespace

std::vector<ShardPiece> plan_shards(const Parameters& params, int ranks) {
  std::vector<ShardPiece> out;
  for (const bool frozen : {false, true}) share(params, frozen, ranks, out);
  std::sort(out.begin(), out.end(), [](const ShardPiece& a, const ShardPiece& b) { return a.offset < b.offset; });
  std::vector<std::int64_t> end(static_cast<std::size_t>(ranks), 0);
  for (ShardPiece& p : out) {
    std::int64_t& at = end[static_cast<std::size_t>(p.owner)];
    p.shard_offset = at;
    at += param_aligned(p.numel);
  }
  return out;
}

std::vector<ShardPiece> unsharded_plan(const Parameters& params) {
  std::vector<ShardPiece> out;
  for (const Param* p : params.layout()) {
    out.push_back(piece(*p, 0, p->shape[0]));
    out.back().shard_offset = p->offset;
  }
  return out;
}

std::vector<ShardPiece> pieces_of_rank(const std::vector<ShardPiece>& plan, int rank) {
  std::vector<ShardPiece> out;
  for (const ShardPiece& p : plan)
    if (p.owner == rank) out.push_back(p);
  return out;
}

std::int64_t shard_size(const std::vector<ShardPiece>& plan, int rank) {
  return end_of_shard(plan, rank, [](const Param&) { return true; });
}

std::int64_t trained_size(const std::vector<ShardPiece>& plan, int rank) {
  return end_of_shard(plan, rank, [](const Param& p) { return !p.is_frozen(); });
}

std::int64_t encoded_begin(const std::vector<ShardPiece>& plan, int rank) {
  return end_of_shard(plan, rank, [](const Param& p) { return !p.encoded; });
}

std::vector<LogicalPiece> logical_pieces(const ShardPiece& whole) {
  std::vector<LogicalPiece> out;
  const std::vector<LogicalParam>& parts = whole.param->parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::int64_t end = i + 1 < parts.size() ? parts[i + 1].first_row : whole.param->shape[0];
    const std::int64_t first = std::max(whole.first_row, i ? parts[i].first_row : 0);
    const std::int64_t rows = std::min(whole.first_row + whole.rows, end) - first;
    if (rows <= 0) continue;
    ShardPiece p = piece(*whole.param, first, rows, whole.owner);
    p.shard_offset = whole.shard_offset + p.offset - whole.offset;
    out.push_back({&parts[i], p});
  }
  return out;
}

PieceRows rows_of(const ShardPiece& piece, const LogicalParam& part) {
  const std::int64_t begin = std::max(piece.first_row, part.first_row);
  const std::int64_t end = std::min(piece.first_row + piece.rows, part.first_row + part.rows);
  if (end <= begin) return {};
  return {begin - part.first_row, end - begin, (begin - piece.first_row) * columns_of(*piece.param)};
}

}  // namespace ring

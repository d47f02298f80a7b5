#include "bench/preflight.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <set>
#include <sstream>
#include <thread>

#include "bench/step.h"
#include "comm/host.h"
#include "core/awake_clock.h"
#include "core/counted.h"
#include "core/cpu/thread_pool.h"
#include "core/joined.h"
#include "core/log.h"
#include "job/liveness.h"
#include "kernels/matmul.h"

namespace ring {
namespace {

constexpr std::int64_t kPeriod = 64;  // period of the matrices in both dimensions
constexpr int kTries = 5;             // the best try is used, because other programs can only add time
constexpr std::chrono::seconds kPatience{20};

struct Sizes {
  std::int64_t side, copied, message;  // side of the matrices; bytes copied; bytes per message
  double seconds;                      // seconds per try
};
constexpr Sizes kGpu{8192, std::int64_t{1} << 29, std::int64_t{1} << 26, 0.2};
constexpr Sizes kCpu{512, 0, std::int64_t{1} << 22, 0.05};

const Sizes& sizes_of(const ExecContext& ctx) { return ctx.stream.device().backend == Backend::cpu ? kCpu : kGpu; }

// Integers that bf16 represents exactly. Sums of 8192 of their products are exact in f32, in any order.
int left(std::int64_t m) { return static_cast<int>((7 * m * m + 3 * m) % 17) - 8; }
int right(std::int64_t m) { return static_cast<int>((5 * m * m + 11 * m) % 13) - 6; }

// Returns the GEMM's results by (j - i) mod kPeriod: the sum over k of left(i + k) right(j + k) depends only on j - i.
std::vector<float> answers(std::int64_t side) {
  std::vector<float> out;
  for (std::int64_t d = 0; d < kPeriod; ++d) {
    std::int64_t sum = 0;
    for (std::int64_t m = 0; m < kPeriod; ++m) sum += left(m) * right((m + d) % kPeriod);
    out.push_back(static_cast<float>(sum * (side / kPeriod)));
  }
  return out;
}

// Returns [side, side] with value((i + k) mod kPeriod) at (i, k): the same kPeriod rows repeated.
Tensor periodic(std::int64_t side, int (*value)(std::int64_t), DType type, const ExecContext& ctx) {
  std::vector<float> rows;
  for (std::int64_t i = 0; i < kPeriod; ++i)
    for (std::int64_t k = 0; k < side; ++k) rows.push_back(static_cast<float>(value((i + k) % kPeriod)));
  std::vector<bf16> narrow_rows(rows.size());
  std::ranges::transform(rows, narrow_rows.begin(), to_bf16);
  const void* source = type == DType::f32 ? static_cast<const void*>(rows.data()) : narrow_rows.data();
  const Tensor t = ctx.empty({side, side}, type);
  for (std::int64_t i = 0; i < side; i += kPeriod) {
    const Tensor part = t.narrow(0, i, kPeriod);
    ctx.stream.impl().copy(part.raw(), source, part.bytes());
  }
  ctx.stream.synchronize();  // allowed host wait: start
  return t;
}

// Returns the rate of the best try.
double best_rate(const ExecContext& ctx, double work, const std::function<void()>& queue_one) {
  double seconds = measure_sustained_seconds(ctx, sizes_of(ctx).seconds, queue_one);
  for (int i = 1; i < kTries; ++i)
    seconds = std::min(seconds, measure_sustained_seconds(ctx, sizes_of(ctx).seconds, queue_one));
  return work / seconds;
}

void try_product(PreflightFacts& f, const ExecContext& ctx) {
  const std::int64_t side = sizes_of(ctx).side;
  const DType type = activation_type(ctx.precision);
  const Tensor a = periodic(side, left, type, ctx), b = periodic(side, right, type, ctx);
  const Matmul product{.a = a, .b = b, .c = ctx.empty({side, side}), .transpose_b = true};
  f.flops_per_second = best_rate(ctx, cost(product).flops, [&] { matmul_kernel(product, ctx); });
  f.wrong_products = count_wrong_elements(product.c, ctx.stream);
}

void try_copy(PreflightFacts& f, const ExecContext& ctx) {
  const std::int64_t side = kPeriod, parts = sizes_of(ctx).copied / (4 * side * side);
  if (parts == 0) return;
  const Tensor part = periodic(side, left, DType::f32, ctx);
  const Tensor from = ctx.empty({parts, side, side}), to = ctx.empty({parts, side, side});
  for (std::int64_t i = 0; i < parts; ++i) copy(from.narrow(0, i, 1).view({side, side}), part, ctx.stream);
  f.bytes_per_second = best_rate(ctx, 2.0 * static_cast<double>(from.bytes()), [&] { copy(to, from, ctx.stream); });
  const std::vector<float> expected = to_host<float>(part.view({side * side}), ctx.stream);
  const std::vector<float> found = to_host<float>(to.view({to.numel()}), ctx.stream);
  for (std::size_t i = 0; i < found.size(); ++i) f.wrong_copies += !(found[i] == expected[i % expected.size()]);
}

// Groups ranks by host; if there is only one host, each rank forms its own unit.
std::vector<std::vector<int>> units_of(const std::vector<std::string>& hosts) {
  std::vector<std::vector<int>> units;
  const bool several = std::set<std::string>(hosts.begin(), hosts.end()).size() > 1;
  std::vector<std::string> names;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    auto at = std::ranges::find(names, hosts[rank]);
    if (!several || at == names.end()) {
      names.push_back(hosts[rank]);
      units.emplace_back();
      at = names.end() - 1;
    }
    units[static_cast<std::size_t>(at - names.begin())].push_back(static_cast<int>(rank));
  }
  return units;
}

void wait_for(Work work, Communicator& comm, const std::string& what) {
  const auto end = AwakeClock::now() + kPatience;
  while (!work.done() && AwakeClock::now() < end) std::this_thread::sleep_for(std::chrono::microseconds(20));
  if (work.done()) return work.synchronize();  // allowed host wait: start
  const std::string text = str("preflight: ", what, " did not complete within ", kPatience.count(), " s");
  comm.abort(text);
  fail(text);
}

class Messages {
 public:
  Messages(const ExecContext& ctx, Mesh& mesh, const std::vector<std::string>& hosts)
      : ctx_(ctx), comm_(mesh.all()), units_(units_of(hosts)), length_(sizes_of(ctx).message / 4) {
    const std::vector<float> own(static_cast<std::size_t>(length_), static_cast<float>(comm_.rank() + 1));
    out_ = from_host(own, ctx.stream);
    in_ = ctx.zeros({length_});
  }

  std::vector<MessageFacts> exchange_with_all() {
    std::vector<MessageFacts> facts;
    const auto units = static_cast<int>(units_.size());
    for (int round = 0; round < units - 1 + units % 2; ++round) {
      const int peer = peer_in(round);
      const MessageFacts message = exchange_with(peer);
      if (peer >= 0) facts.push_back(message);
    }
    std::ranges::sort(facts, {}, &MessageFacts::peer);
    return facts;
  }

 private:
  // Returns the rank with which this rank exchanges messages in a round: the rank at the same index of the partner unit
  // (units_of(): ranks of a host). -1 if there is none.
  int peer_in(int round) const {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const auto at = std::ranges::find(units_[u], comm_.rank());
      if (at == units_[u].end()) continue;
      const int other = partner_in_round(static_cast<int>(u), static_cast<int>(units_.size()), round);
      const auto place = static_cast<std::size_t>(at - units_[u].begin());
      if (other < 0 || place >= units_[static_cast<std::size_t>(other)].size()) return -1;
      return units_[static_cast<std::size_t>(other)][place];
    }
    return -1;
  }
  // Exchanges messages with `peer`; the first message, which connects, is not timed. Called on all ranks; ranks with
  // peer -1 send nothing.
  MessageFacts exchange_with(int peer) {
    double seconds = 0;
    bool wrong = false;
    for (int i = 0; i <= kTries; ++i) {
      const auto begin = AwakeClock::now();
      std::vector<Transfer> sends, receives;
      if (peer >= 0) sends = {{out_, peer}}, receives = {{in_, peer}};
      wait_for(comm_.exchange(sends, receives, ctx_.stream.record()), comm_,
               str("a message between rank ", comm_.rank(), " on ", host_name(), " and rank ", peer));
      const double took = std::chrono::duration<double>(AwakeClock::now() - begin).count();
      if (i > 0) seconds = seconds > 0 ? std::min(seconds, took) : took;
      wrong |= peer >= 0 && !came_from(peer);
    }
    if (peer < 0) return {};
    return {peer, 4.0 * static_cast<double>(length_) / seconds, wrong};
  }
  // Checks the received message, then clears the buffer, so that a later message that does not arrive is detected, too.
  bool came_from(int peer) const {
    const std::vector<float> came = to_host<float>(in_, ctx_.stream);
    fill_zero(in_, ctx_.stream);
    return std::ranges::all_of(came, [&](float v) { return v == static_cast<float>(peer + 1); });
  }

  const ExecContext& ctx_;
  Communicator& comm_;
  std::vector<std::vector<int>> units_;
  std::int64_t length_;
  Tensor out_, in_;
};

std::string encode(const PreflightFacts& f) {
  std::ostringstream out;
  out.precision(17);
  out << f.host << '\n'
      << f.device << '\n'
      << f.on_gpu << ' ' << f.flops_per_second << ' ' << f.bytes_per_second << ' ';
  out << f.wrong_products << ' ' << f.wrong_copies;
  for (const MessageFacts& m : f.messages) out << ' ' << m.peer << ' ' << m.bytes_per_second << ' ' << m.wrong;
  return out.str();
}

PreflightFacts decode(const std::string& text) {
  PreflightFacts f;
  std::istringstream in(text);
  std::getline(in, f.host);
  std::getline(in, f.device);
  in >> f.on_gpu >> f.flops_per_second >> f.bytes_per_second >> f.wrong_products >> f.wrong_copies;
  for (MessageFacts m; in >> m.peer >> m.bytes_per_second >> m.wrong;) f.messages.push_back(m);
  return f;
}

// Returns e.g. "712 TFLOP/s" or "2.1 TB/s".
std::string rate_text(double rate, const char* unit) {
  if (!(rate > 0)) return "-";
  int power = 0;
  constexpr std::array kPrefixes = {"", "k", "M", "G", "T", "P"};
  for (; rate >= 1000 && power + 1 < static_cast<int>(kPrefixes.size()); rate /= 1000) ++power;
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.3g %s%s/s", rate, kPrefixes[static_cast<std::size_t>(power)], unit);
  return text.data();
}

std::string name_of(std::size_t rank, const PreflightFacts& f) {
  return str("rank ", rank, " on ", f.host, " (", f.device, ")");
}

// A rate, and the rates of other ranks or pairs with which it is compared.
struct Comparison {
  double rate = 0, others = 0;  // others: median of the other rates; 0 if there are none
  double share = 0;             // minimum share of `others` that is not a problem
  bool bad() const { return others > 0 && !(rate >= share * others); }
};

Comparison compare(const std::vector<PreflightFacts>& all, std::size_t rank, double PreflightFacts::*rate) {
  std::vector<double> others;
  for (std::size_t r = 0; r < all.size(); ++r)
    if (r != rank && all[r].device == all[rank].device) others.push_back(all[r].*rate);
  return {all[rank].*rate, median(others), all[rank].on_gpu ? kMinOfGpu : kMinOfCpu};
}

struct Pair {
  int first, second;
  double rate;
};

// Returns each pair once, with the rate measured on its slower side.
std::vector<Pair> pairs_of(const std::vector<PreflightFacts>& all) {
  std::vector<Pair> pairs;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    for (const MessageFacts& m : all[rank].messages) {
      const auto own = static_cast<int>(rank);
      if (own < m.peer) pairs.push_back({own, m.peer, m.bytes_per_second});
      for (Pair& p : pairs)
        if (p.first == m.peer && p.second == own) p.rate = std::min(p.rate, m.bytes_per_second);
    }
  return pairs;
}

std::string slow(const std::string& who, const char* what, const Comparison& c, const char* unit, const char* others) {
  return str(who, what, rate_text(c.rate, unit), ", the median of the other ", others, " ", rate_text(c.others, unit));
}

void add_own_problems(const std::vector<PreflightFacts>& all, std::size_t rank, std::vector<std::string>& out) {
  const PreflightFacts& f = all[rank];
  const std::string who = name_of(rank, f);
  if (f.wrong_products > 0)
    out.push_back(str(who, " computed ", counted(f.wrong_products, "wrong element"), " of a product"));
  if (f.wrong_copies > 0) out.push_back(str(who, " copied ", counted(f.wrong_copies, "element"), " wrongly"));
  if (const Comparison c = compare(all, rank, &PreflightFacts::flops_per_second); c.bad())
    out.push_back(slow(who, " computed ", c, "FLOP", "ranks"));
  if (const Comparison c = compare(all, rank, &PreflightFacts::bytes_per_second); c.bad())
    out.push_back(slow(who, " copied ", c, "B", "ranks"));
  for (const MessageFacts& m : f.messages)
    if (m.wrong) out.push_back(str(who, " received different bytes than rank ", m.peer, " sent"));
}

void add_pair_problems(const std::vector<PreflightFacts>& all, std::vector<std::string>& out) {
  const std::vector<Pair> pairs = pairs_of(all);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    std::vector<double> others;
    for (std::size_t j = 0; j < pairs.size(); ++j)
      if (j != i) others.push_back(pairs[j].rate);
    const auto first = static_cast<std::size_t>(pairs[i].first), second = static_cast<std::size_t>(pairs[i].second);
    const double share = all[first].on_gpu ? kMinOfGpuPair : kMinOfCpuPair;
    const Comparison c{pairs[i].rate, median(others), share};
    if (c.bad())
      out.push_back(slow(str("ranks ", first, " on ", all[first].host, " and ", second, " on ", all[second].host),
                         " exchanged ", c, "B", "pairs"));
  }
}

std::vector<PreflightFacts> gather(const PreflightFacts& own, Mesh& mesh) {
  std::vector<PreflightFacts> all;
  for (const std::string& text : gather_host(mesh.host(), encode(own))) all.push_back(decode(text));
  return all;
}

std::string device_text(const ExecContext& ctx) {
  if (ctx.stream.device().backend != Backend::cpu) return ctx.stream.impl().device_name();
  return "CPU, " + counted(ctx.stream.pool().size(), "thread");
}

}  // namespace

int partner_in_round(int unit, int num_units, int round) {
  // With an odd number of units, one has no partner in each round.
  const int n = num_units + num_units % 2, last = n - 1;
  int other = 0;
  if (unit == last)
    for (other = 0; (2 * other - round) % last != 0;) ++other;
  else
    other = (round - unit + last) % last;
  if (other == unit) other = last;
  return other < num_units ? other : -1;
}

std::int64_t count_wrong_elements(const Tensor& c, const Stream& stream) {
  const std::int64_t side = c.dim(0);
  const std::vector<float> right_ones = answers(side);
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < side; i += kPeriod) {
    const std::vector<float> rows = to_host<float>(c.narrow(0, i, kPeriod).view({kPeriod * side}), stream);
    for (std::int64_t at = 0; at < kPeriod * side; ++at) {
      const std::int64_t row = at / side, column = at % side;
      const float answer = right_ones[static_cast<std::size_t>((column - row + side) % kPeriod)];
      wrong += !(rows[static_cast<std::size_t>(at)] == answer);  // also counts NaN as wrong
    }
  }
  return wrong;
}

std::vector<std::string> preflight_problems(const std::vector<PreflightFacts>& all) {
  std::vector<std::string> problems;
  for (std::size_t rank = 0; rank < all.size(); ++rank) add_own_problems(all, rank, problems);
  add_pair_problems(all, problems);
  return problems;
}

std::string preflight_table(const std::vector<PreflightFacts>& all) {
  std::vector<std::array<std::string, 6>> rows = {{"rank", "host", "device", "product", "copy", "slowest message"}};
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const PreflightFacts& f = all[rank];
    const auto slowest = std::ranges::min_element(f.messages, {}, &MessageFacts::bytes_per_second);
    const std::string message = slowest == f.messages.end()
                                    ? "-"
                                    : str(rate_text(slowest->bytes_per_second, "B"), " with rank ", slowest->peer);
    rows.push_back({str(rank), f.host, f.device, rate_text(f.flops_per_second, "FLOP"),
                    rate_text(f.bytes_per_second, "B"), message});
  }
  std::array<std::size_t, 6> widths{};
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const auto& row : rows) {
    std::string line = " ";
    for (std::size_t i = 0; i < row.size(); ++i) line += " " + row[i] + std::string(widths[i] - row[i].size() + 1, ' ');
    text += "\n" + line.substr(0, line.find_last_not_of(' ') + 1);
  }
  return text;
}

void run_preflight(const ExecContext& ctx, Mesh& mesh) {
  const std::vector<std::string> hosts = gather_host(mesh.host(), host_identity());
  PreflightFacts own{host_name(), device_text(ctx), ctx.stream.device().backend != Backend::cpu};
  try_product(own, ctx);
  try_copy(own, ctx);
  gather(own, mesh);  // synchronizes the ranks, so that a slow rank does not look like a lost message
  if (mesh.world() > 1) own.messages = Messages(ctx, mesh, hosts).exchange_with_all();
  const std::vector<PreflightFacts> all = gather(own, mesh);
  if (mesh.rank() == 0) log::info("preflight:", preflight_table(all));
  const std::vector<std::string> problems = preflight_problems(all);
  if (!problems.empty())
    fail("preflight: ", joined(problems, "; "), ". Remove this hardware from the job, or train without --preflight");
}

}  // namespace ring

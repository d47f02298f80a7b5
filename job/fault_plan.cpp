#include "job/fault_plan.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "core/check.h"
#include "core/joined.h"

namespace ring {
namespace {

constexpr std::array<std::string_view, 7> kKinds = {"kill", "stop", "slow", "corrupt", "io", "memory", "device"};
constexpr std::array<std::string_view, 7> kCalls = {"create", "read", "reserve", "write", "resize", "fsync", "rename"};
constexpr std::array<std::string_view, 7> kOperations = {"all_reduce", "all_gather",    "reduce_scatter", "all_to_all",
                                                         "broadcast",  "reduce_pieces", "exchange"};
constexpr std::array<std::string_view, 2> kSides = {"sent", "received"};
constexpr double kMaxFaultSeconds = 1e7;
constexpr std::int64_t kMost = 1'000'000'000;

// Returns the keys of a fault kind, each followed by a space.
std::string keys_of(FaultKind kind) {
  const std::string common = "rank step phase after attempt ";
  switch (kind) {
    case FaultKind::kill:
    case FaultKind::stop: return common + "agent mean probability ";
    case FaultKind::slow: return common + "until factor wait ";
    case FaultKind::corrupt: return common + "probability call side bytes nth times ";
    case FaultKind::io: return common + "probability call error wait nth times ";
    case FaultKind::memory: return common + "probability nth times ";
    case FaultKind::device: return "rank step phase attempt probability ";
  }
  return common;
}

// Part of the fault plan's text, with its offset `at` in the whole text.
struct Piece {
  std::string_view text;
  std::size_t at;

  // Splits the text at the first `mark`. The second piece is nullopt if there is no `mark`.
  std::pair<Piece, std::optional<Piece>> cut(char mark) const {
    const std::size_t place = text.find(mark);
    if (place == std::string_view::npos) return {*this, std::nullopt};
    return {{text.substr(0, place), at}, Piece{text.substr(place + 1), at + place + 1}};
  }
  std::vector<Piece> split(char mark) const {
    std::vector<Piece> pieces;
    for (std::optional<Piece> rest = *this; rest;) {
      auto [piece, more] = rest->cut(mark);
      pieces.push_back(piece);
      rest = more;
    }
    return pieces;
  }
  template <class... Parts>
  [[noreturn]] void wrong(const Parts&... parts) const {
    fail("--inject: character ", at + 1, ": '", text, "' ", parts...);
  }
};

template <class Words>
std::string listed(const Words& words) {
  return joined({words.begin(), words.end()}, ", ");
}

template <class Number>
Number number(const Piece& p, std::string_view text, Number min, Number max, const char* what) {
  Number n{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  if (!whole || !(n >= min && n <= max)) p.wrong("is not ", what, " from ", min, " to ", max);
  return n;
}
std::int64_t count(const Piece& p, std::int64_t min = 1) {
  return number<std::int64_t>(p, p.text, min, kMost, "a whole number");
}

double seconds(const Piece& p) {
  static constexpr std::array<std::pair<std::string_view, double>, 4> units = {
      {{"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}}};
  for (const auto& [unit, factor] : units)
    if (p.text.ends_with(unit))
      return factor * number<double>(p, p.text.substr(0, p.text.size() - unit.size()), 0, kMaxFaultSeconds / factor,
                                     "a time such as 500ms, 60s, 5m or 1h,");
  p.wrong("is not a time: give a number and ms, s, m or h");
}

template <class Enum, class Words>
Enum word(const Piece& p, const Words& words, const char* what) {
  const auto it = std::ranges::find(words, p.text);
  if (it == words.end()) p.wrong("is not a known ", what, "; expected one of ", listed(words));
  return static_cast<Enum>(it - words.begin());
}

RunPhase phase_of(const Piece& p) {
  std::vector<std::string> known;
  for (auto i = static_cast<int>(RunPhase::load); i < static_cast<int>(RunPhase::count); ++i) {
    const auto phase = static_cast<RunPhase>(i);
    if (phase == RunPhase::nothing) continue;
    if (to_string(phase) == p.text) return phase;
    known.emplace_back(to_string(phase));
  }
  p.wrong("is not a phase; expected one of ", joined(known, ", "));
}

Fault::Whom whom_of(const Piece& p, bool agents) {
  Fault::Whom whom{.agents = agents};
  if (p.text == "any") return whom;
  whom.all = p.text == "all";
  if (whom.all) return whom;
  for (const Piece& one : p.split('+')) {
    if (one.text.find_first_not_of("0123456789") != std::string_view::npos || one.text.empty())
      one.wrong("is not a ", agents ? "node" : "rank", "; give a number, several as 0+2, any or all");
    whom.listed.push_back(static_cast<int>(number<std::int64_t>(one, one.text, 0, 1 << 20, "a number")));
  }
  return whom;
}

int error_of(const Piece& p) {
  static constexpr std::array<std::pair<std::string_view, int>, 5> errors = {
      {{"EIO", EIO}, {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT}, {"EROFS", EROFS}, {"short", kShortIo}}};
  std::vector<std::string> known;
  for (const auto& [name, value] : errors) {
    if (name == p.text) return value;
    known.emplace_back(name);
  }
  p.wrong("is not a known error; expected one of ", joined(known, ", "));
}

void set_when(Fault& f, std::string_view key, const Piece& value) {
  if (key == "step") f.step = count(value);
  if (key == "until") f.until = count(value);
  if (key == "phase") f.phase = phase_of(value);
  if (key == "after") f.after = seconds(value);
  if (key == "mean") f.mean = seconds(value);
  if (key == "probability") f.probability = number<double>(value, value.text, 0, 1, "a number");
  if (key == "attempt") f.attempt = value.text == "each" ? std::nullopt : std::optional(count(value, 0));
}

void set_what(Fault& f, std::string_view key, const Piece& value) {
  if (key == "rank" || key == "agent") f.whom = whom_of(value, key == "agent");
  if (key == "factor") f.factor = number<double>(value, value.text, 1, 1000, "a number");
  if (key == "wait") f.wait = seconds(value);
  if (key == "side") f.sent = word<int>(value, kSides, "side") == 0;
  if (key == "bytes") f.bytes = count(value);
  if (key == "nth") f.nth = count(value);
  if (key == "times") f.times = count(value);
  if (key == "error") f.error = error_of(value);
  if (key == "call" && f.kind == FaultKind::io) f.call = word<IoCall>(value, kCalls, "call of the file system");
  if (key == "call" && f.kind == FaultKind::corrupt)
    f.operation = kOperations[word<std::size_t>(value, kOperations, "operation")];
}

// Throws Error if keys of the fault do not fit together.
void check(const Piece& p, const Fault& f, const std::vector<std::string>& given) {
  const auto has = [&](const char* key) { return std::ranges::count(given, key) > 0; };
  if (has("rank") && has("agent")) p.wrong("names ranks and agents: write two faults");
  if (has("mean") && !(f.mean > 0)) p.wrong("has a mean of 0 seconds");
  if (has("mean") && (has("step") || has("phase") || has("probability")))
    p.wrong("has a mean, which already sets the times: remove step, phase and probability");
  if (has("until") && f.until < f.step) p.wrong("ends before it begins");
  if (f.kind == FaultKind::device && f.phase && is_of_writing(*f.phase))
    p.wrong("has a phase that writes a checkpoint, which no device does: give a phase of steps");
  if (f.kind == FaultKind::slow && has("factor") == has("wait")) p.wrong("needs either factor or wait");
  if (f.kind == FaultKind::io && has("error") == has("wait")) p.wrong("needs either error or wait");
  if (f.error == kShortIo && f.call != IoCall::write && f.call != IoCall::read)
    p.wrong("has error=short, which requires call=write or call=read");
}

Fault parse_fault(const Piece& p) {
  Fault f;
  const auto [kind, settings] = p.cut('@');
  f.kind = word<FaultKind>(kind, kKinds, "kind of fault");
  f.text = p.text;
  std::vector<std::string> given;
  for (const Piece& pair : settings ? settings->split(',') : std::vector<Piece>{}) {
    const auto [key, value] = pair.cut('=');
    const std::string known = keys_of(f.kind);
    if (key.text.empty() || key.text.find(' ') != std::string_view::npos ||
        (" " + known).find(" " + std::string(key.text) + " ") == std::string::npos)
      key.wrong("is not a key of ", to_string(f.kind), "; expected one of ", known.substr(0, known.size() - 1));
    if (!value || value->text.empty()) pair.wrong("has no value: write ", key.text, "=...");
    if (std::ranges::count(given, key.text)) pair.wrong("is given twice");
    given.emplace_back(key.text);
    if (key.text == "mean" || key.text == "probability")
      if (!std::ranges::count(given, "attempt")) f.attempt.reset();  // by default, random faults apply to every attempt
    set_when(f, key.text, *value);
    set_what(f, key.text, *value);
  }
  check(p, f, given);
  return f;
}

}  // namespace

std::string_view to_string(FaultKind k) { return kKinds[static_cast<std::size_t>(k)]; }
std::string_view to_string(IoCall c) { return kCalls[static_cast<std::size_t>(c)]; }

FaultPlan parse_fault_plan(const std::string& text) {
  const auto [seed, faults] = Piece{text, 0}.cut(':');
  FaultPlan plan;
  plan.seed = number<std::uint64_t>(seed, seed.text, 0, std::numeric_limits<std::uint64_t>::max(), "a seed");
  if (!faults) seed.wrong("is a seed without faults: write SEED:FAULT;FAULT..., such as 7:kill@rank=1,step=250");
  for (const Piece& p : faults->split(';')) plan.faults.push_back(parse_fault(p));
  return plan;
}

}  // namespace ring

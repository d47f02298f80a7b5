#include "text/bpe/merges.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "core/check.h"
#include "text/utf8.h"

namespace ring::bpe {
namespace {

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

}  // namespace

PairTable::PairTable(std::size_t pairs) : slots_(std::bit_ceil(2 * pairs + 2)) {}

std::size_t PairTable::slot_of(std::uint64_t key) const {
  const std::size_t mask = slots_.size() - 1;
  // Fibonacci hashing: the upper half of the product depends on every bit of both ids.
  std::size_t at = static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> 32) & mask;
  while (slots_[at].key != key && slots_[at].merge.id >= 0) at = (at + 1) & mask;
  return at;
}

void PairTable::set(std::int32_t left, std::int32_t right, Merge merge) {
  const std::uint64_t key = key_of(left, right);
  slots_[slot_of(key)] = {key, merge};
}

const PairTable::Merge* PairTable::find(std::int32_t left, std::int32_t right) const {
  const Slot& slot = slots_[slot_of(key_of(left, right))];
  return slot.merge.id >= 0 ? &slot.merge : nullptr;
}

bool Model::has_byte_fallback() const {
  return std::ranges::none_of(bytes, [](std::int32_t id) { return id < 0; });
}

const std::vector<Symbol>& Merger::tokens(std::string_view word, EncodeReport& report) {
  out_.clear();
  if (word.size() > std::numeric_limits<std::int32_t>::max()) fail("a word of ", word.size(), " bytes is too long");
  if (model_.ignore_merges)
    if (const auto whole = model_.whole.find(word); whole != model_.whole.end()) {
      out_.push_back({whole->second, static_cast<std::uint32_t>(word.size())});
      return out_;
    }
  start_word(word, report);
  apply_merges();
  if (!nodes_.empty())
    for (std::int32_t i = 0; i >= 0; i = nodes_[static_cast<std::size_t>(i)].next)
      out_.push_back(nodes_[static_cast<std::size_t>(i)].symbol);
  return out_;
}

void Merger::start_word(std::string_view word, EncodeReport& report) {
  nodes_.clear();
  open_unknown_ = false;
  while (!word.empty()) {
    const std::size_t valid = model_.byte_level ? 0 : utf8::valid_length(word), n = valid ? valid : 1;
    start_character(word.substr(0, n), valid ? utf8::decode(word, n) : 0, valid > 0, report);
    word.remove_prefix(n);
  }
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i].previous = static_cast<std::int32_t>(i) - 1;
    nodes_[i].next = i + 1 < nodes_.size() ? static_cast<std::int32_t>(i) + 1 : -1;
  }
}

void Merger::start_character(std::string_view bytes, char32_t c, bool valid, EncodeReport& report) {
  if (valid)
    if (const auto known = model_.characters.find(c); known != model_.characters.end())
      return add_symbol({known->second, static_cast<std::uint32_t>(bytes.size())});
  const auto token = [&](char b) { return model_.bytes[static_cast<unsigned char>(b)]; };
  if (std::ranges::all_of(bytes, [&](char b) { return token(b) >= 0; })) {
    for (const char b : bytes) add_symbol({token(b), 1});
    return;
  }
  ++report.unknown;
  if (model_.unknown >= 0) add_unknown(bytes.size());
}

void Merger::add_symbol(Symbol s) {
  nodes_.push_back({s});
  open_unknown_ = false;
}

void Merger::add_unknown(std::size_t bytes) {
  const auto n = static_cast<std::uint32_t>(bytes);
  if (model_.fuse_unknown && open_unknown_)
    nodes_.back().symbol.bytes += n;
  else
    add_symbol({model_.unknown, n});
  open_unknown_ = true;
}

void Merger::push_candidate(std::int32_t place) {
  const Node& left = nodes_[static_cast<std::size_t>(place)];
  if (left.next < 0) return;
  const auto* m = model_.merges.find(left.symbol.id, nodes_[static_cast<std::size_t>(left.next)].symbol.id);
  if (!m) return;
  queue_.push_back({m->rank, place, m->id});
  std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
}

// Merges in ascending order of rank, the leftmost of equal ranks first. Skips a candidate whose tokens have already
// been merged.
void Merger::apply_merges() {
  queue_.clear();
  for (std::size_t i = 0; i + 1 < nodes_.size(); ++i) push_candidate(static_cast<std::int32_t>(i));
  while (!queue_.empty()) {
    std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
    const Candidate top = queue_.back();
    queue_.pop_back();
    Node& left = nodes_[static_cast<std::size_t>(top.place)];
    if (left.symbol.bytes == 0 || left.next < 0) continue;
    Node& right = nodes_[static_cast<std::size_t>(left.next)];
    const auto* m = model_.merges.find(left.symbol.id, right.symbol.id);
    if (!m || m->id != top.id) continue;
    left.symbol = {top.id, left.symbol.bytes + right.symbol.bytes};
    left.next = right.next;
    right.symbol.bytes = 0;
    if (left.next >= 0) nodes_[static_cast<std::size_t>(left.next)].previous = top.place;
    if (left.previous >= 0) push_candidate(left.previous);
    push_candidate(top.place);
  }
}

}  // namespace ring::bpe

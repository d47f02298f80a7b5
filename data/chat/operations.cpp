// What operators do, as Python does it.
#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "data/chat/builtins.h"
#include "data/chat/characters.h"

namespace ring::chat {
namespace {

Value undefined_in(const Value& of, const std::string& what) {
  if (of.is<Undefined>()) fail("'", of.get<Undefined>()->name, "' is undefined, it has no ", what);
  return Undefined{what};
}

// A place counted from the end where it is negative, within [least, most].
std::int64_t place_in(std::int64_t at, std::int64_t size, std::int64_t least, std::int64_t most) {
  return std::clamp(at < 0 ? at + size : at, least, most);
}

std::vector<std::int64_t> places_of_slice(std::int64_t size, const Value* begin, const Value* end, const Value* step) {
  const auto given = [](const Value* v) { return v && !v->is<None>(); };
  const std::int64_t by = given(step) ? step->integer() : 1;
  if (by == 0) fail("the step of a slice is 0");
  const std::int64_t least = by > 0 ? 0 : -1, most = by > 0 ? size : size - 1;
  std::int64_t at = given(begin) ? place_in(begin->integer(), size, least, most) : by > 0 ? 0 : size - 1;
  const std::int64_t stop = given(end) ? place_in(end->integer(), size, least, most) : by > 0 ? size : -1;
  std::vector<std::int64_t> places;
  for (; by > 0 ? at < stop : at > stop; at += by) {
    places.push_back(at);
    if (by > 0 ? by > stop - at : by < stop - at) break;
  }
  return places;
}

Value whole(const std::string& symbol, std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  const bool wraps = symbol == "+"   ? __builtin_add_overflow(a, b, &out)
                     : symbol == "-" ? __builtin_sub_overflow(a, b, &out)
                                     : symbol == "*" && __builtin_mul_overflow(a, b, &out);
  if (wraps) fail("the result of ", a, " ", symbol, " ", b, " is too large");
  if (symbol == "+" || symbol == "-" || symbol == "*") return out;
  if (b == 0) fail("a division by zero");
  if (symbol == "/") return static_cast<double>(a) / static_cast<double>(b);
  if (b == -1) return symbol == "%" ? Value(std::int64_t{0}) : whole("-", 0, a);
  const std::int64_t rest = a % b, floor = a / b - (rest != 0 && (rest < 0) != (b < 0) ? 1 : 0);
  return symbol == "//" ? Value(floor) : Value(a - floor * b);
}

Value fraction(const std::string& symbol, double a, double b) {
  if (symbol == "+") return a + b;
  if (symbol == "-") return a - b;
  if (symbol == "*") return a * b;
  if (b == 0) fail("a division by zero");
  if (symbol == "/") return a / b;
  const double floor = std::floor(a / b);
  return symbol == "//" ? floor : a - floor * b;
}

Value amount(const Value& v) { return v.is<bool>() ? Value(std::int64_t{*v.get<bool>() ? 1 : 0}) : v; }

}  // namespace

Value member_of(const Value& of, const std::string& name) {
  if (of.is_dict())
    if (const Value* found = of.members().find(name)) return *found;
  if (const auto* space = of.get<std::shared_ptr<Namespace>>())
    for (const auto& [member, value] : (*space)->members)
      if (member == name) return value;
  return undefined_in(of, name);
}

Value item_of(const Value& of, const Value& index) {
  if (index.is_text()) return member_of(of, index.text());
  if (!index.is<std::int64_t>()) return undefined_in(of, index.kind());
  const std::int64_t size = of.is_list() || of.is_text() ? length_of(of) : 0, i = index.integer();
  if (i < -size || i >= size) return undefined_in(of, str("item ", i));
  const auto place = static_cast<std::size_t>(i < 0 ? i + size : i);
  return of.is_list() ? of.items().items[place] : Value(std::string(characters(of.text())[place]));
}

Value slice_of(const Value& of, const Value* begin, const Value* end, const Value* step) {
  if (of.is_text()) {
    const auto all = characters(of.text());
    std::string out;
    for (const std::int64_t at : places_of_slice(static_cast<std::int64_t>(all.size()), begin, end, step))
      out += all[static_cast<std::size_t>(at)];
    return out;
  }
  const std::vector<Value>& all = of.items().items;
  std::vector<Value> out;
  for (const std::int64_t at : places_of_slice(static_cast<std::int64_t>(all.size()), begin, end, step))
    out.push_back(all[static_cast<std::size_t>(at)]);
  return Value::list(std::move(out));
}

std::int64_t length_of(const Value& v) {
  if (v.is<Undefined>()) return 0;
  if (v.is_text()) return static_cast<std::int64_t>(character_count(v.text()));
  return static_cast<std::int64_t>(v.is_dict() ? v.members().members.size() : v.items().items.size());
}

std::vector<Value> items_of(const Value& v) {
  if (v.is_list()) return v.items().items;
  std::vector<Value> out;
  if (v.is<Undefined>()) return out;
  if (v.is_dict()) {
    for (const Member& m : v.members().members) out.emplace_back(m.first);
    return out;
  }
  if (!v.is_text()) fail(v.kind(), " has no items");
  for (const std::string_view c : characters(v.text())) {
    out.emplace_back(std::string(c));
    check_bytes(out.size() * kValueBytes);
  }
  return out;
}

bool contains(const Value& all, const Value& one) {
  if (all.is_text()) return all.text().find(one.text()) != std::string::npos;
  if (all.is_dict()) return one.is_text() && all.members().find(one.text());
  const std::vector<Value> items = items_of(all);
  return std::ranges::find(items, one) != items.end();
}

Value binary(const std::string& symbol, const Value& left, const Value& right) {
  if (symbol == "~") return left.print() + right.print();
  const Value a = amount(left), b = amount(right);
  if (symbol == "+" && a.is_text() && b.is_text()) return a.text() + b.text();
  if (symbol == "+" && a.is_list() && b.is_list()) {
    std::vector<Value> all = a.items().items;
    all.insert(all.end(), b.items().items.begin(), b.items().items.end());
    return Value::list(std::move(all));
  }
  if (!a.is_number() || !b.is_number())
    fail("'", symbol, "' goes neither with nor between ", left.kind(), " and ", right.kind());
  if (a.is<std::int64_t>() && b.is<std::int64_t>()) return whole(symbol, a.integer(), b.integer());
  return fraction(symbol, a.number(), b.number());
}

bool compare(const std::string& symbol, const Value& left, const Value& right) {
  if (symbol == "in") return contains(right, left);
  if (symbol == "not in") return !contains(right, left);
  if (symbol == "==") return left == right;
  if (symbol == "!=") return !(left == right);
  const Value a = amount(left), b = amount(right);
  int order;
  if (a.is_text() && b.is_text()) {
    order = a.text().compare(b.text());
  } else {
    if (!a.is_number() || !b.is_number()) fail("'", symbol, "' does not compare ", left.kind(), " and ", right.kind());
    order = a.number() < b.number() ? -1 : a.number() > b.number();
  }
  if (symbol == "<") return order < 0;
  if (symbol == "<=") return order <= 0;
  return symbol == ">" ? order > 0 : order >= 0;
}

}  // namespace ring::chat

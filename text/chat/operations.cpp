// Operators with the semantics of Python.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/check.h"
#include "core/yaml.h"
#include "text/chat/builtins.h"
#include "text/chat/characters.h"

namespace ring::chat {
namespace {

Value undefined_in(const Value& of, std::string_view what) {
  std::string name = shown_name(what);
  if (of.is<Undefined>()) fail("'", of.get<Undefined>()->name, "' is undefined, so it has no ", name);
  return Undefined{std::move(name)};
}

// Returns the position `at`, counted from the end if negative, clamped to [min, max].
std::int64_t place_in(std::int64_t at, std::int64_t size, std::int64_t min, std::int64_t max) {
  return std::clamp(at < 0 ? at + size : at, min, max);
}

// Positions first, first + by, ... of a list or string; `count` is their number.
struct Slice {
  std::int64_t first = 0, by = 1, count = 0;
};

Slice slice_in(std::int64_t size, const Value* begin, const Value* end, const Value* step) {
  const auto given = [](const Value* v) { return v && !v->is<None>(); };
  const std::int64_t by = given(step) ? step->integer() : 1;
  if (by == 0) fail("the step of a slice is 0");
  const std::int64_t min = by > 0 ? 0 : -1, max = by > 0 ? size : size - 1;
  const std::int64_t first = given(begin) ? place_in(begin->integer(), size, min, max) : by > 0 ? 0 : size - 1;
  const std::int64_t stop = given(end) ? place_in(end->integer(), size, min, max) : by > 0 ? size : -1;
  const std::int64_t length = by > 0 ? stop - first : first - stop;
  if (length <= 0) return {first, by, 0};
  const std::int64_t stride = by == INT64_MIN ? INT64_MAX : std::abs(by);
  return {first, by, (length - 1) / stride + 1};
}

std::string slice_text(std::string_view text, const Value* begin, const Value* end, const Value* step, Budget& budget) {
  budget.charge_read(text.size());
  const auto size = static_cast<std::int64_t>(character_count(text));
  const Slice slice = slice_in(size, begin, end, step);
  if (slice.by == 1) {
    const std::size_t from = byte_offset_of(text, static_cast<std::size_t>(slice.first));
    const std::size_t bytes = byte_offset_of(text.substr(from), static_cast<std::size_t>(slice.count));
    budget.charge_created(bytes);
    return std::string(text.substr(from, bytes));
  }
  budget.charge_created(text.size() * (1 + sizeof(std::size_t)));
  std::vector<std::size_t> starts;
  for (std::size_t at = 0; at < text.size(); at += character_length(text, at)) starts.push_back(at);
  std::string out;
  for (std::int64_t i = 0; i < slice.count; ++i) {
    const std::size_t at = starts[static_cast<std::size_t>(slice.first + i * slice.by)];
    out += text.substr(at, character_length(text, at));
  }
  return out;
}

Value whole(std::string_view symbol, std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  const bool wraps = symbol == "+"   ? __builtin_add_overflow(a, b, &out)
                     : symbol == "-" ? __builtin_sub_overflow(a, b, &out)
                                     : symbol == "*" && __builtin_mul_overflow(a, b, &out);
  if (wraps) fail("the result of ", a, " ", symbol, " ", b, " is too large");
  if (symbol == "+" || symbol == "-" || symbol == "*") return out;
  if (b == 0) fail("division by zero");
  if (symbol == "/") return static_cast<double>(a) / static_cast<double>(b);
  if (b == -1) return symbol == "%" ? Value(std::int64_t{0}) : whole("-", 0, a);
  const std::int64_t rest = a % b, floor = a / b - (rest != 0 && (rest < 0) != (b < 0) ? 1 : 0);
  return symbol == "//" ? Value(floor) : Value(a - floor * b);
}

Value fraction(std::string_view symbol, double a, double b) {
  if (symbol == "+") return a + b;
  if (symbol == "-") return a - b;
  if (symbol == "*") return a * b;
  if (b == 0) fail("division by zero");
  if (symbol == "/") return a / b;
  const double floor = std::floor(a / b);
  return symbol == "//" ? floor : a - floor * b;
}

Value amount(const Value& v) { return v.is<bool>() ? Value(std::int64_t{*v.get<bool>() ? 1 : 0}) : v; }

}  // namespace

std::string shown_name(std::string_view name) { return shown(std::string(name.substr(0, 100))); }

Value member_of(const Value& of, std::string_view name, Budget& budget) {
  if (of.is_dict()) {
    budget.charge_name_lookup(of.members().members.size(), name.size());
    if (const Value* found = of.members().find(name)) return *found;
  }
  if (const auto* space = of.get<std::shared_ptr<Namespace>>()) {
    budget.charge_name_lookup((*space)->members.size(), name.size());
    const auto found = std::ranges::find((*space)->members, name, &Member::first);
    if (found != (*space)->members.end()) return found->second;
  }
  return undefined_in(of, name);
}

Value item_of(const Value& of, const Value& index, Budget& budget) {
  if (index.is_text()) return member_of(of, index.text(), budget);
  if (!index.is<std::int64_t>()) return undefined_in(of, index.kind());
  const std::int64_t size = of.is_list() || of.is_text() ? length_of(of, budget) : 0, i = index.integer();
  if (i < -size || i >= size) return undefined_in(of, str("item ", i));
  const auto place = static_cast<std::size_t>(i < 0 ? i + size : i);
  if (of.is_list()) return of.items().items[place];
  const std::size_t at = byte_offset_of(of.text(), place);
  return of.text().substr(at, character_length(of.text(), at));
}

Value slice_of(const Value& of, const Value* begin, const Value* end, const Value* step, Budget& budget) {
  if (of.is_text()) return slice_text(of.text(), begin, end, step, budget);
  const std::vector<Value>& all = of.items().items;
  const Slice slice = slice_in(static_cast<std::int64_t>(all.size()), begin, end, step);
  budget.charge_created(kValueBytes * static_cast<std::size_t>(slice.count));
  std::vector<Value> out;
  for (std::int64_t i = 0; i < slice.count; ++i)
    out.push_back(all[static_cast<std::size_t>(slice.first + i * slice.by)]);
  return Value::list(std::move(out));
}

std::int64_t length_of(const Value& v, Budget& budget) {
  if (v.is<Undefined>()) return 0;
  if (v.is_text()) {
    budget.charge_read(v.text().size());
    return static_cast<std::int64_t>(character_count(v.text()));
  }
  return static_cast<std::int64_t>(v.is_dict() ? v.members().members.size() : v.items().items.size());
}

std::vector<Value> items_of(const Value& v, Budget& budget) {
  if (v.is<Undefined>()) return {};
  if (!v.is_list() && !v.is_dict() && !v.is_text()) fail(v.kind(), " has no items");
  const std::int64_t count = length_of(v, budget);
  budget.charge_created(kValueBytes * static_cast<std::size_t>(count) + (v.is_text() ? v.text().size() : 0));
  budget.check(kValueBytes * static_cast<std::size_t>(count));
  if (v.is_list()) return v.items().items;
  std::vector<Value> out;
  if (v.is_dict()) {
    for (const Member& m : v.members().members) {
      budget.charge_created(m.first.size());
      out.emplace_back(m.first);
    }
    return out;
  }
  const std::string& text = v.text();
  for (std::size_t at = 0, length; at < text.size(); at += length) {
    length = character_length(text, at);
    out.emplace_back(text.substr(at, length));
  }
  return out;
}

bool contains(const Value& all, const Value& one, Budget& budget) {
  if (all.is_text()) {
    budget.charge_read(all.text().size() + one.text().size());
    return find_part(all.text(), one.text()) != std::string_view::npos;
  }
  if (all.is_dict()) {
    if (!one.is_text()) return false;
    budget.charge_name_lookup(all.members().members.size(), one.text().size());
    return all.members().find(one.text());
  }
  if (all.is<Undefined>()) return false;
  if (!all.is_list()) fail(all.kind(), " has no items");
  return std::ranges::any_of(all.items().items, [&](const Value& item) { return equal(item, one, budget); });
}

Value apply_binary(std::string_view symbol, const Value& left, const Value& right, Budget& budget) {
  const Value a = amount(left), b = amount(right);
  if (symbol == "~" || (symbol == "+" && a.is_text() && b.is_text())) {
    std::string text;
    for (const Value* v : {&left, &right}) reject_none(*v);
    for (const Value* v : {&left, &right}) budget.append(text, v->is_text() ? v->text() : print(*v, budget));
    return text;
  }
  if (symbol == "+" && a.is_list() && b.is_list()) {
    std::vector<Value> all;
    for (const Value* v : {&a, &b}) {
      budget.charge_created(v->top_bytes());
      all.insert(all.end(), v->items().items.begin(), v->items().items.end());
    }
    Value list = Value::list(std::move(all));
    budget.check(list.bytes());
    return list;
  }
  if (!a.is_number() || !b.is_number())
    fail("the operator '", symbol, "' is not defined for ", left.kind(), " and ", right.kind());
  if (a.is<std::int64_t>() && b.is<std::int64_t>()) return whole(symbol, a.integer(), b.integer());
  return fraction(symbol, a.number(), b.number());
}

bool compare(std::string_view symbol, const Value& left, const Value& right, Budget& budget) {
  if (symbol == "in") return contains(right, left, budget);
  if (symbol == "not in") return !contains(right, left, budget);
  if (symbol == "==") return equal(left, right, budget);
  if (symbol == "!=") return !equal(left, right, budget);
  const Value a = amount(left), b = amount(right);
  int order;
  if (a.is_text() && b.is_text()) {
    budget.charge_read(std::min(a.text().size(), b.text().size()));
    order = a.text().compare(b.text());
  } else {
    if (!a.is_number() || !b.is_number()) fail("'", symbol, "' cannot compare ", left.kind(), " and ", right.kind());
    order = a.number() < b.number() ? -1 : a.number() > b.number();
  }
  if (symbol == "<") return order < 0;
  if (symbol == "<=") return order <= 0;
  return symbol == ">" ? order > 0 : order >= 0;
}

}  // namespace ring::chat

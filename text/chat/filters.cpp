// Filters and tests, found by name. call_filter() and call_test() charge the budget for reading `of`; each function
// charges it for everything else that it reads or creates.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

#include "core/check.h"
#include "text/chat/builtins.h"
#include "text/chat/characters.h"

namespace ring::chat {
namespace {

using Filter = Value (*)(const Value&, Arguments&);
using Test = bool (*)(const Value&, Arguments&);

Value method(const char* name, const Value& of, Arguments& a) {
  return call_method(name, of.is_text() ? of : Value(print(of, a.budget())), a);
}

// Returns a nested member; the path has dots between names.
Value attribute_of(Value of, std::string_view path, Budget& budget) {
  budget.charge_read(path.size());
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t dot = std::min(path.find('.', at), path.size());
    of = member_of(of, path.substr(at, dot - at), budget);
    at = dot + 1;
  }
  return of;
}

// Returns the items that pass the test in the arguments (without a test: the items that are true); if not `keep`,
// returns the others. by_attribute: tests an attribute of each item.
Value chosen(const Value& of, Arguments& a, bool by_attribute, bool keep) {
  const std::string attribute = by_attribute ? a.need(0, "attribute").text() : "";
  const std::size_t first = by_attribute ? 1 : 0;
  const Value* named = a.find(first, "");
  const std::string test = named ? named->text() : "";
  std::vector<Value> out;
  for (const Value& item : items_of(of, a.budget())) {
    const Value subject = by_attribute ? attribute_of(item, attribute, a.budget()) : item;
    Arguments rest = a.without(first + 1);
    if ((test.empty() ? subject.is_truthy() : call_test(test, subject, rest)) != keep) continue;
    a.budget().charge_created(kValueBytes);
    out.push_back(item);
  }
  for (std::size_t i = first + 1; i < a.size(); ++i) a.find(i, "");  // the others are for the test: marks them as used
  return Value::list(std::move(out));
}

Value mapped(const Value& of, Arguments& a) {
  std::vector<Value> out;
  const Value* attribute = a.find_named("attribute");
  const Value* otherwise = attribute ? a.find_named("default") : nullptr;
  const std::string filter = attribute ? "" : a.need(0, "filter").text();
  for (const Value& item : items_of(of, a.budget())) {
    a.budget().charge_created(kValueBytes);
    if (attribute) {
      Value found = attribute_of(item, attribute->text(), a.budget());
      out.push_back(found.is<Undefined>() && otherwise ? *otherwise : std::move(found));
    } else {
      Arguments rest = a.without(1);
      out.push_back(call_filter(filter, item, rest));
    }
  }
  if (!attribute) {  // the others are for the filter: marks them as used
    for (std::size_t i = 1; i < a.size(); ++i) a.find(i, "");
    for (const Member& m : a.named()) a.find_named(m.first);
  }
  return Value::list(std::move(out));
}

Value joined(const Value& of, Arguments& a) {
  const Value* between = a.find(0, "d");
  const Value* attribute = a.find(1, "attribute");
  const std::string gap = between ? print(*between, a.budget()) : "";
  std::string out;
  bool first = true;
  for (const Value& item : items_of(of, a.budget())) {
    if (!std::exchange(first, false)) a.budget().append(out, gap);
    const Value part = attribute ? attribute_of(item, attribute->text(), a.budget()) : item;
    a.budget().append(out, part.is_text() ? part.text() : print(part, a.budget()));
  }
  return out;
}

Value json(const Value& of, Arguments& a) {
  // Positions as in the filter of transformers, tojson(ensure_ascii, indent); Jinja's own begins with indent.
  const Value* ascii = a.find(0, "ensure_ascii");
  const Value* indent = a.find(1, "indent");
  if (ascii && ascii->is_truthy()) fail("tojson: ensure_ascii=true is not supported");
  const bool none = !indent || indent->is<None>();
  const std::int64_t by = none ? -1 : indent->integer();
  if (by < -1 || by > 64) fail("tojson: expected an indent from 0 to 64, got ", by);
  return json_text(of, static_cast<int>(by), a.budget());
}

Value defaulted(const Value& of, Arguments& a) {
  const Value* other = a.find(0, "default_value");
  const Value* also_false = a.find(1, "boolean");
  const bool missing = of.is<Undefined>() || (also_false && also_false->is_truthy() && !of.is_truthy());
  return !missing ? of : other ? *other : Value(std::string());
}

Value end_item(const Value& of, bool first, Budget& budget) {
  const std::vector<Value> all = items_of(of, budget);
  if (all.empty()) return Undefined{first ? "first" : "last"};
  return first ? all.front() : all.back();
}

// Parses the whole text for the filter `int`, like Python's int() or float(); nullopt if it is not a number.
template <class Number>
std::optional<Number> parsed(std::string_view text) {
  std::string digits;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool between = i > 0 && i + 1 < text.size() && std::isdigit(text[i - 1]) && std::isdigit(text[i + 1]);
    if (text[i] != '_' || !between) digits += text[i];
  }
  const std::string_view unsigned_part = std::string_view(digits).substr(digits.starts_with('+') ? 1 : 0);
  if (unsigned_part.size() < digits.size() && unsigned_part.starts_with('-')) return {};
  Number n{};
  const auto [end, error] = std::from_chars(unsigned_part.data(), unsigned_part.data() + unsigned_part.size(), n);
  if (error == std::errc::result_out_of_range) fail("int: the number ", text.substr(0, 40), " is too large");
  if (error != std::errc{} || end != unsigned_part.data() + unsigned_part.size()) return {};
  return n;
}

// Jinja's filter `int`: int(text); if that fails, int(float(text)) ("3.9" gives 3); if that fails, the default.
Value whole_number(const Value& of, Arguments& a) {
  const Value* given = a.find(0, "default");
  const Value otherwise = given ? *given : Value(std::int64_t{0});
  const auto truncated = [](double x) {
    if (!(std::fabs(x) < 9e18)) fail("int: ", x, " does not fit into 64 bits");
    return Value(static_cast<std::int64_t>(x));
  };
  if (of.is<double>()) return truncated(of.number());
  if (of.is<bool>()) return std::int64_t{of.is_truthy()};
  if (of.is<Undefined>() || of.is<std::int64_t>()) return of.integer();
  if (!of.is_text()) return otherwise;
  const std::string_view text = strip(of.text(), true, true, nullptr);
  if (std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; }))
    fail("int: expected ASCII text, got '", text.substr(0, 40), "'");
  if (const auto whole = parsed<std::int64_t>(text)) return *whole;
  const auto real = parsed<double>(text);
  return real && std::isfinite(*real) ? truncated(*real) : otherwise;
}

Value absolute(const Value& of, Budget& budget) {
  if (of.is<double>()) return std::fabs(of.number());
  return of.integer() < 0 ? apply_binary("-", Value(std::int64_t{0}), of, budget) : of;
}

Value pairs_of(const Value& of, Budget& budget) {
  Arguments none({}, {}, budget);
  return of.is<Undefined>() ? Value::list({}) : call_method("items", of, none);
}

Value backwards(const Value& of, Budget& budget) {
  const Value step(std::int64_t{-1});
  return slice_of(of, nullptr, nullptr, &step, budget);
}

const std::map<std::string, Filter, std::less<>>& filters() {
  static const std::map<std::string, Filter, std::less<>> all{
      {"abs", [](const Value& v, Arguments& a) { return absolute(v, a.budget()); }},
      {"capitalize", [](const Value& v, Arguments& a) { return method("capitalize", v, a); }},
      {"count", [](const Value& v, Arguments& a) { return Value(length_of(v, a.budget())); }},
      {"d", defaulted},
      {"default", defaulted},
      {"first", [](const Value& v, Arguments& a) { return end_item(v, true, a.budget()); }},
      {"int", whole_number},
      {"items", [](const Value& v, Arguments& a) { return pairs_of(v, a.budget()); }},
      {"join", joined},
      {"last", [](const Value& v, Arguments& a) { return end_item(v, false, a.budget()); }},
      {"length", [](const Value& v, Arguments& a) { return Value(length_of(v, a.budget())); }},
      {"list", [](const Value& v, Arguments& a) { return Value::list(items_of(v, a.budget())); }},
      {"lower", [](const Value& v, Arguments& a) { return method("lower", v, a); }},
      {"map", mapped},
      {"reject", [](const Value& v, Arguments& a) { return chosen(v, a, false, false); }},
      {"rejectattr", [](const Value& v, Arguments& a) { return chosen(v, a, true, false); }},
      {"replace", [](const Value& v, Arguments& a) { return method("replace", v, a); }},
      {"reverse", [](const Value& v, Arguments& a) { return backwards(v, a.budget()); }},
      {"safe", [](const Value& v, Arguments&) { return v; }},
      {"select", [](const Value& v, Arguments& a) { return chosen(v, a, false, true); }},
      {"selectattr", [](const Value& v, Arguments& a) { return chosen(v, a, true, true); }},
      {"string", [](const Value& v, Arguments& a) { return Value(print(v, a.budget())); }},
      {"title", [](const Value& v,
                   Arguments& a) { return capitalized_words(v.is_text() ? v : Value(print(v, a.budget())), a); }},
      {"tojson", json},
      {"trim", [](const Value& v, Arguments& a) { return method("strip", v, a); }},
      {"upper", [](const Value& v, Arguments& a) { return method("upper", v, a); }},
  };
  return all;
}

bool is_even(const Value& v, Arguments&) { return v.integer() % 2 == 0; }
bool is_odd(const Value& v, Arguments& a) { return !is_even(v, a); }
bool is_equal(const Value& v, Arguments& a) { return equal(v, a.need(0, "other"), a.budget()); }
bool is_unequal(const Value& v, Arguments& a) { return !is_equal(v, a); }

const std::map<std::string, Test, std::less<>>& tests() {
  static const std::map<std::string, Test, std::less<>> all{
      {"==", is_equal},
      {"!=", is_unequal},
      {"boolean", [](const Value& v, Arguments&) { return v.is<bool>(); }},
      {"callable", [](const Value& v, Arguments&) { return v.is<Callable>(); }},
      {"defined", [](const Value& v, Arguments&) { return !v.is<Undefined>(); }},
      {"eq", is_equal},
      {"equalto", is_equal},
      {"even", is_even},
      {"false", [](const Value& v, Arguments&) { return v.is<bool>() && !v.is_truthy(); }},
      {"float", [](const Value& v, Arguments&) { return v.is<double>(); }},
      {"in", [](const Value& v, Arguments& a) { return contains(a.need(0, "seq"), v, a.budget()); }},
      {"integer", [](const Value& v, Arguments&) { return v.is<std::int64_t>(); }},
      {"iterable",
       [](const Value& v, Arguments&) { return v.is_list() || v.is_dict() || v.is_text() || v.is<Undefined>(); }},
      {"mapping", [](const Value& v, Arguments&) { return v.is_dict(); }},
      {"ne", is_unequal},
      {"none", [](const Value& v, Arguments&) { return v.is<None>(); }},
      {"number", [](const Value& v, Arguments&) { return v.is_number() || v.is<bool>(); }},
      {"odd", is_odd},
      {"sequence",
       [](const Value& v, Arguments&) { return v.is_list() || v.is_dict() || v.is_text() || v.is<Undefined>(); }},
      {"string", [](const Value& v, Arguments&) { return v.is_text(); }},
      {"true", [](const Value& v, Arguments&) { return v.is<bool>() && v.is_truthy(); }},
      {"undefined", [](const Value& v, Arguments&) { return v.is<Undefined>(); }},
  };
  return all;
}

}  // namespace

Value call_filter(std::string_view name, const Value& of, Arguments& a) {
  const auto found = filters().find(name);
  if (found == filters().end()) fail("the filter '", shown_name(name), "' is not supported");
  a.budget().charge_read(of.top_bytes());
  Value out = found->second(of, a);
  a.reject_unused("filter", name);
  a.budget().check(out.bytes());
  return out;
}

bool call_test(std::string_view name, const Value& of, Arguments& a) {
  const auto found = tests().find(name);
  if (found == tests().end()) fail("the test '", shown_name(name), "' is not supported");
  a.budget().charge_read(of.top_bytes());
  const bool out = found->second(of, a);
  a.reject_unused("test", name);
  return out;
}

std::vector<std::string_view> filter_names() { return names_of(filters()); }
std::vector<std::string_view> test_names() { return names_of(tests()); }

}  // namespace ring::chat

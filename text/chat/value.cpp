#include "text/chat/value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/json.h"
#include "text/chat/characters.h"

namespace ring::chat {
namespace {

constexpr std::size_t kDeepestValue = 100;

const Extent* extent_of(const Value& v) {
  if (const auto* list = v.get<std::shared_ptr<const List>>()) return &(*list)->extent;
  if (const auto* dict = v.get<std::shared_ptr<const Dict>>()) return &(*dict)->extent;
  return nullptr;
}

// Adds an item to the extent. Throws Error for a namespace: if it could be an item, it could contain itself.
void grow(Extent& all, const Value& item) {
  if (item.is<std::shared_ptr<Namespace>>()) fail("a namespace cannot be part of a list, an object or a namespace");
  const Extent* inner = extent_of(item);
  if (inner && inner->depth >= kDeepestValue) fail("lists and objects are nested more than ", kDeepestValue, " times");
  all.depth = std::max(all.depth, inner ? inner->depth + 1 : 1);
  all.bytes += item.bytes();
  check_bytes(all.bytes);
}

// Formats a number like Python, with the fewest digits from which the same number can be read.
std::string number_text(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x < 0 ? "-inf" : "inf";
  std::array<char, 64> buffer{};
  const double size = std::fabs(x);
  const bool plain = x == 0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), x,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer.data(), end.ptr);
  if (plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

}  // namespace

const Value* Dict::find(std::string_view name) const {
  const auto found = std::ranges::find(members, name, &Member::first);
  return found == members.end() ? nullptr : &found->second;
}

Value Value::list(std::vector<Value> items) {
  auto list = std::make_shared<List>();
  for (const Value& v : items) grow(list->extent, v);
  list->items = std::move(items);
  Value out;
  out.data_ = std::shared_ptr<const List>(std::move(list));
  return out;
}

Value Value::dict(std::vector<Member> members) {
  auto dict = std::make_shared<Dict>();
  for (Member& m : members) {
    grow(dict->extent, m.second);
    grow(dict->extent, Value(m.first));
    const auto found = std::ranges::find(dict->members, m.first, &Member::first);
    if (found == dict->members.end())
      dict->members.push_back(std::move(m));
    else
      found->second = std::move(m.second);
  }
  Value out;
  out.data_ = std::shared_ptr<const Dict>(std::move(dict));
  return out;
}

const std::string& Value::text() const {
  if (!is_text()) fail("expected a string, got ", kind());
  return **get<std::shared_ptr<const std::string>>();
}
const List& Value::items() const {
  if (!is_list()) fail("expected a list, got ", kind());
  return **get<std::shared_ptr<const List>>();
}
const Dict& Value::members() const {
  if (!is_dict()) fail("expected an object, got ", kind());
  return **get<std::shared_ptr<const Dict>>();
}
std::int64_t Value::integer() const {
  if (!is<std::int64_t>()) fail("expected an integer, got ", kind());
  return *get<std::int64_t>();
}
double Value::number() const {
  if (is<double>()) return *get<double>();
  if (!is<std::int64_t>()) fail("expected a number, got ", kind());
  return static_cast<double>(integer());
}

bool Value::is_truthy() const {
  if (is<bool>()) return *get<bool>();
  if (is_number()) return number() != 0;
  if (is_text()) return !text().empty();
  if (is_list()) return !items().items.empty();
  if (is_dict()) return !members().members.empty();
  return !is<Undefined>() && !is<None>();
}

std::size_t Value::top_bytes() const {
  if (is_text()) return text().size();
  return kValueBytes * (is_list() ? items().items.size() : is_dict() ? members().members.size() : 0);
}

std::size_t Value::bytes() const {
  const Extent* extent = extent_of(*this);
  return kValueBytes + (extent ? extent->bytes : is_text() ? text().size() : 0);
}

std::string Value::kind() const {
  if (is<Undefined>()) return "undefined ('" + get<Undefined>()->name + "')";
  if (is<None>()) return "none";
  if (is<bool>()) return "a boolean";
  if (is_number()) return "the number " + (is<double>() ? number_text(number()) : std::to_string(integer()));
  if (is_text()) return "a string";
  if (is_list()) return "a list";
  if (is_dict()) return "an object";
  return is<Callable>() ? str("the function ", get<Callable>()->name) : "a namespace";
}

namespace {

// Writes values into one string, charging the budget piece by piece.
class Printer {
 public:
  explicit Printer(Budget& budget) : budget_(budget) {}
  std::string take() { return std::move(out_); }
  void add(std::string_view text) { budget_.append(out_, text); }

  void python(const Value& v) {
    budget_.charge_steps(1);
    if (v.is<None>()) return add("None");
    if (v.is<bool>()) return add(*v.get<bool>() ? "True" : "False");
    if (v.is<std::int64_t>()) return add(std::to_string(v.integer()));
    if (v.is<double>()) return add(number_text(v.number()));
    if (v.is_text()) return quoted_python(v.text());
    if (v.is_list()) return python_list(v.items());
    if (v.is_dict()) return python_dict(v.members());
    if (!v.is<Undefined>()) fail(v.kind(), " cannot be written as text");
  }

  void json(const Value& v, int indent, int level) {
    budget_.charge_steps(1);
    if (v.is<None>()) return add("null");
    if (v.is<bool>()) return add(*v.get<bool>() ? "true" : "false");
    if (v.is_text()) return quoted_json(v.text());
    if (v.is<std::int64_t>()) return add(std::to_string(v.integer()));
    if (v.is_number()) return add(std::isfinite(v.number()) ? number_text(v.number()) : unbounded(v.number()));
    if (v.is_list()) return json_list(v.items(), indent, level);
    if (!v.is_dict()) fail(v.kind(), " cannot be written as JSON");
    json_dict(v.members(), indent, level);
  }

 private:
  static std::string unbounded(double x) { return std::isnan(x) ? "NaN" : x < 0 ? "-Infinity" : "Infinity"; }

  void python_list(const List& list) {
    add("[");
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) add(", ");
      python(list.items[i]);
    }
    add("]");
  }

  void python_dict(const Dict& dict) {
    add("{");
    for (std::size_t i = 0; i < dict.members.size(); ++i) {
      if (i > 0) add(", ");
      quoted_python(dict.members[i].first);
      add(": ");
      python(dict.members[i].second);
    }
    add("}");
  }

  // Writes the separator between two items, or between a bracket and an item.
  void line(int indent, int level, bool comma) {
    if (comma) add(indent < 0 ? ", " : ",");
    if (indent < 0) return;
    add("\n");
    add(std::string(static_cast<std::size_t>(indent * level), ' '));
  }

  void json_list(const List& list, int indent, int level) {
    add("[");
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      line(indent, level + 1, i > 0);
      json(list.items[i], indent, level + 1);
    }
    if (!list.items.empty()) line(indent, level, false);
    add("]");
  }

  void json_dict(const Dict& dict, int indent, int level) {
    add("{");
    for (std::size_t i = 0; i < dict.members.size(); ++i) {
      line(indent, level + 1, i > 0);
      quoted_json(dict.members[i].first);
      add(": ");
      json(dict.members[i].second, indent, level + 1);
    }
    if (!dict.members.empty()) line(indent, level, false);
    add("}");
  }

  // Writes a string like Python's repr().
  void quoted_python(std::string_view text) {
    budget_.charge_read(text.size());
    const bool single = text.find('\'') == std::string_view::npos || text.find('"') != std::string_view::npos;
    const char quote = single ? '\'' : '"';
    add({&quote, 1});
    while (!text.empty()) {
      const std::size_t plain = plain_bytes(text, quote);
      add(text.substr(0, plain));
      text.remove_prefix(plain);
      if (text.empty()) break;
      const std::size_t length = character_length(text, 0);
      add(escaped_python(decoded(text.substr(0, length)), quote));
      text.remove_prefix(length);
    }
    add({&quote, 1});
  }

  // Returns the number of bytes before the first character that needs an escape.
  static std::size_t plain_bytes(std::string_view text, char quote) {
    std::size_t at = 0;
    while (at < text.size()) {
      const std::size_t length = character_length(text, at);
      const char32_t c = decoded(text.substr(at, length));
      const bool ascii = c < 0x80;
      if (c == static_cast<char32_t>(quote) || c == '\\' || (ascii ? c < ' ' || c == 0x7F : !is_printable(c))) break;
      at += length;
    }
    return at;
  }

  static std::string escaped_python(char32_t c, char quote) {
    if (c == '\n') return "\\n";
    if (c == '\t') return "\\t";
    if (c == '\r') return "\\r";
    if (c == '\\' || c == static_cast<char32_t>(quote)) return {'\\', static_cast<char>(c)};
    std::string out{'\\', c < 0x100 ? 'x' : c < 0x10000 ? 'u' : 'U'};
    for (int digit = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8; digit-- > 0;) out += "0123456789abcdef"[c >> 4 * digit & 0xF];
    return out;
  }

  // Writes a JSON string, in pieces, since escaping can make it six times as long.
  void quoted_json(std::string_view text) {
    constexpr std::size_t kPiece = 1 << 16;
    add("\"");
    while (!text.empty()) {
      std::size_t end = 0;
      while (end < std::min(text.size(), kPiece)) end += character_length(text, end);
      budget_.charge_read(end);
      using Json = nlohmann::json;
      const std::string quoted = ring::json_text(Json(text.substr(0, end)));
      add(std::string_view(quoted).substr(1, quoted.size() - 2));
      text.remove_prefix(end);
    }
    add("\"");
  }

  Budget& budget_;
  std::string out_;
};

}  // namespace

std::string print(const Value& v, Budget& budget) {
  Printer out(budget);
  if (v.is_text())
    out.add(v.text());
  else
    out.python(v);
  return out.take();
}

void reject_none(const Value& v) {
  if (v.is<None>()) fail("a value is null and would be written as None, the way Python writes it");
}

std::string json_text(const Value& v, int indent, Budget& budget) {
  Printer out(budget);
  out.json(v, indent, 0);
  return out.take();
}

namespace {

bool equal_texts(const std::string& a, const std::string& b, Budget& budget) {
  if (a.size() != b.size()) return false;
  budget.charge_read(a.size());
  return a == b;
}

bool equal_dicts(const Dict& a, const Dict& b, Budget& budget) {
  return a.members.size() == b.members.size() && std::ranges::all_of(a.members, [&](const Member& m) {
           budget.charge_name_lookup(b.members.size(), m.first.size());
           const Value* other = b.find(m.first);
           return other && equal(*other, m.second, budget);
         });
}

}  // namespace

// Compares numbers by value, booleans as numbers, and everything else only with values of the same type.
bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.charge_steps(1);
  const auto numeric = [](const Value& v) { return v.is_number() || v.is<bool>(); };
  const auto amount = [](const Value& v) { return v.is<bool>() ? static_cast<double>(*v.get<bool>()) : v.number(); };
  if (a.is<std::int64_t>() && b.is<std::int64_t>()) return a.integer() == b.integer();
  if (numeric(a) && numeric(b)) return amount(a) == amount(b);
  if (a.is_text() && b.is_text()) return equal_texts(a.text(), b.text(), budget);
  if (a.is_list() && b.is_list())
    return std::ranges::equal(a.items().items, b.items().items,
                              [&](const Value& x, const Value& y) { return equal(x, y, budget); });
  if (a.is_dict() && b.is_dict()) return equal_dicts(a.members(), b.members(), budget);
  return (a.is<None>() && b.is<None>()) || (a.is<Undefined>() && b.is<Undefined>());
}

Value from_json(const nlohmann::ordered_json& j) {
  if (j.is_null()) return None{};
  if (j.is_boolean()) return j.get<bool>();
  if (j.is_string()) return j.get<std::string>();
  if (j.is_number_unsigned() && j.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))
    fail("the number ", j.dump(), " is too large");
  if (j.is_number_integer()) return j.get<std::int64_t>();
  // Rejects numbers from 2^63 on: whole numbers would become inexact fractions here, whereas Python keeps them exact.
  constexpr double kTooLarge = 0x1p63;
  if (j.is_number() && !(std::abs(j.get<double>()) < kTooLarge)) fail("the number ", j.dump(), " is too large");
  if (j.is_number()) return j.get<double>();
  if (j.is_array()) {
    std::vector<Value> items;
    for (const auto& item : j) items.push_back(from_json(item));
    return Value::list(std::move(items));
  }
  std::vector<Member> members;
  for (const auto& [name, value] : j.items()) members.emplace_back(name, from_json(value));
  return Value::dict(std::move(members));
}

}  // namespace ring::chat

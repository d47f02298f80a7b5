#include "data/chat/value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "data/chat/characters.h"

namespace ring::chat {
namespace {

constexpr std::size_t kDeepest = 100;

const Extent* extent_of(const Value& v) {
  if (const auto* list = v.get<std::shared_ptr<const List>>()) return &(*list)->extent;
  if (const auto* dict = v.get<std::shared_ptr<const Dict>>()) return &(*dict)->extent;
  return nullptr;
}

// Namespaces in lists could hold each other.
void grow(Extent& all, const Value& item) {
  if (item.is<std::shared_ptr<Namespace>>()) fail("a namespace cannot be part of a list, an object or a namespace");
  const Extent* inner = extent_of(item);
  if (inner && inner->depth >= kDeepest) fail("lists and objects are nested more than ", kDeepest, " times");
  all.depth = std::max(all.depth, inner ? inner->depth + 1 : 1);
  all.bytes += item.bytes();
  check_bytes(all.bytes);
}

// As Python writes it: the fewest digits that read back as the same number.
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

std::string quoted_python(const std::string& text) {
  const bool single = text.find('\'') == std::string::npos || text.find('"') != std::string::npos;
  const char quote = single ? '\'' : '"';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\') out += '\\';
    if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\r')
      out += "\\r";
    else
      out += c;
  }
  return out + quote;
}

std::string quoted_json(const std::string& text) {
  using Json = nlohmann::json;
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
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
  if (!is_text()) fail("a text is wanted, here is ", kind());
  return **get<std::shared_ptr<const std::string>>();
}
const List& Value::items() const {
  if (!is_list()) fail("a list is wanted, here is ", kind());
  return **get<std::shared_ptr<const List>>();
}
const Dict& Value::members() const {
  if (!is_dict()) fail("an object is wanted, here is ", kind());
  return **get<std::shared_ptr<const Dict>>();
}
std::int64_t Value::integer() const {
  if (!is<std::int64_t>()) fail("a whole number is wanted, here is ", kind());
  return *get<std::int64_t>();
}
double Value::number() const {
  if (is<double>()) return *get<double>();
  if (!is<std::int64_t>()) fail("a number is wanted, here is ", kind());
  return static_cast<double>(integer());
}

bool Value::truth() const {
  if (is<bool>()) return *get<bool>();
  if (is_number()) return number() != 0;
  if (is_text()) return !text().empty();
  if (is_list()) return !items().items.empty();
  if (is_dict()) return !members().members.empty();
  return !is<Undefined>() && !is<None>();
}

std::size_t Value::bytes() const {
  const Extent* extent = extent_of(*this);
  return kValueBytes + (extent ? extent->bytes : is_text() ? text().size() : 0);
}

std::string Value::kind() const {
  if (is<Undefined>()) return "undefined ('" + get<Undefined>()->name + "')";
  if (is<None>()) return "none";
  if (is<bool>()) return "a boolean";
  if (is_number()) return "the number " + print();
  if (is_text()) return "a text";
  if (is_list()) return "a list";
  if (is_dict()) return "an object";
  return is<Callable>() ? "the function " + get<Callable>()->name : "a namespace";
}

std::string Value::print() const { return is_text() ? text() : repr(); }

std::string Value::repr() const {
  if (is<Undefined>()) return "";
  if (is<None>()) return "None";
  if (is<bool>()) return *get<bool>() ? "True" : "False";
  if (is<std::int64_t>()) return std::to_string(integer());
  if (is<double>()) return number_text(number());
  if (is_text()) return quoted_python(text());
  std::string out;
  if (is_list()) {
    for (const Value& v : items().items) out += (out.empty() ? "" : ", ") + v.repr();
    return "[" + out + "]";
  }
  if (!is_dict()) fail(kind(), " cannot be written as text");
  for (const auto& [name, v] : members().members)
    out += (out.empty() ? "" : ", ") + quoted_python(name) + ": " + v.repr();
  return "{" + out + "}";
}

std::string Value::json(int indent, int level) const {
  if (is<None>()) return "null";
  if (is<bool>()) return *get<bool>() ? "true" : "false";
  if (is_text()) return quoted_json(text());
  if (is_number()) {
    const std::string plain = repr();
    return plain == "nan" ? "NaN" : plain == "inf" ? "Infinity" : plain == "-inf" ? "-Infinity" : plain;
  }
  const auto line = [&](int at) {
    return indent < 0 ? "" : "\n" + std::string(static_cast<std::size_t>(indent * at), ' ');
  };
  std::string out;
  const auto add = [&](const std::string& part) {
    out += (out.empty() ? "" : indent < 0 ? ", " : ",") + line(level + 1) + part;
  };
  if (is_list()) {
    for (const Value& v : items().items) add(v.json(indent, level + 1));
    return out.empty() ? "[]" : "[" + out + line(level) + "]";
  }
  if (!is_dict()) fail(kind(), " cannot be written as JSON");
  for (const auto& [name, v] : members().members) add(quoted_json(name) + ": " + v.json(indent, level + 1));
  return out.empty() ? "{}" : "{" + out + line(level) + "}";
}

// Numbers by their size, booleans as numbers, everything else only with its own kind.
bool operator==(const Value& a, const Value& b) {
  const auto numeric = [](const Value& v) { return v.is_number() || v.is<bool>(); };
  const auto amount = [](const Value& v) { return v.is<bool>() ? static_cast<double>(*v.get<bool>()) : v.number(); };
  if (a.is<std::int64_t>() && b.is<std::int64_t>()) return a.integer() == b.integer();
  if (numeric(a) && numeric(b)) return amount(a) == amount(b);
  if (a.is_text() && b.is_text()) return a.text() == b.text();
  if (a.is_list() && b.is_list()) return a.items().items == b.items().items;
  if (a.is_dict() && b.is_dict()) {
    const auto &x = a.members(), &y = b.members();
    return x.members.size() == y.members.size() && std::ranges::all_of(x.members, [&](const Member& m) {
             const Value* other = y.find(m.first);
             return other && *other == m.second;
           });
  }
  return (a.is<None>() && b.is<None>()) || (a.is<Undefined>() && b.is<Undefined>());
}

Value from_json(const nlohmann::ordered_json& j) {
  if (j.is_null()) return None{};
  if (j.is_boolean()) return j.get<bool>();
  if (j.is_string()) return j.get<std::string>();
  if (j.is_number_unsigned() && j.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))
    fail("the number ", j.dump(), " is too large");
  if (j.is_number_integer()) return j.get<std::int64_t>();
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
